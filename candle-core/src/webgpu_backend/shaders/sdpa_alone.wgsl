// Attention of one query (a row: batch, head, query) to `chunk` keys in an invocation, BLOCK keys at a time. Maximum and sum are
// corrected from block to block (Milakov and Gimelshein, arXiv 1805.02867). Neighbouring invocations have neighbouring rows: those
// of one head, and of heads that share keys, read the same keys at the same time.

const LEAST = -0x1.fffffep+127f;
const BLOCK = 8u;
const_assert HEAD_DIM == 4u * QUADS;

var<private> query: array<vec4<f32>, QUADS>;
var<private> sums: array<vec4<f32>, QUADS>;

@compute @workgroup_size(WG * TEAMS)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let rows = p.batch * p.heads * p.queries;
  let number = flat(workgroup, workgroups, team_of(invocation), TEAMS);
  let row = number % rows;
  let split = number / rows;
  if (split >= p.splits) {
    return;
  }
  let at = row % p.queries;
  let head = row / p.queries % p.heads;
  let batch = row / (p.queries * p.heads);
  let kv_head = head / p.group;
  let q_start = p.q_offset + batch * p.q_batch + head * p.q_head + at * p.q_seq;
  let k_start = p.k_offset + batch * p.k_batch + kv_head * p.k_head;
  let v_start = p.v_offset + batch * p.v_batch + kv_head * p.v_head;
  for (var quad = 0u; quad < QUADS; quad++) {
    query[quad] = q_quad(q_start, quad) * p.scale;
  }
  var seen = p.keys;
  if (CAUSAL) {
    seen = p.keys - p.queries + at + 1u;
  }
  let first = split * p.chunk;
  let last = min(first + p.chunk, seen);
  var most = LEAST;
  var sum = 0.0;
  for (var key = first; key < last; key += BLOCK) {
    var scores: array<f32, BLOCK>;
    var higher = most;
    for (var i = 0u; i < BLOCK; i++) {
      let start = k_start + min(key + i, last - 1u) * p.k_seq;
      var product = vec4<f32>(0.0);
      for (var quad = 0u; quad < QUADS; quad++) {
        product = fma(query[quad], k_quad(start, quad), product);
      }
      var score = dot(product, vec4<f32>(1.0));
      if (SOFTCAP) {
        score = p.softcap * f_tanh(score / p.softcap);
      }
      scores[i] = score;
      // A key past the last one is the last one again.
      higher = max(higher, score);
    }
    let correction = exp(most - higher);
    most = higher;
    sum *= correction;
    for (var i = 0u; i < BLOCK; i++) {
      scores[i] = select(0.0, exp(scores[i] - most), key + i < last);
      sum += scores[i];
    }
    for (var quad = 0u; quad < QUADS; quad++) {
      var value = sums[quad] * correction;
      for (var i = 0u; i < BLOCK; i++) {
        value = fma(vec4<f32>(scores[i]), v_quad(v_start + min(key + i, last - 1u) * p.v_seq, quad), value);
      }
      sums[quad] = value;
    }
  }
  store(row, row * p.splits + split, most, sum, member(invocation));
}
