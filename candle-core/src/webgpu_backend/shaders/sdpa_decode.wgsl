// Attention of one query (a row: batch, head, query) to `chunk` keys in a workgroup, TURN keys an iteration. SHARERS invocations
// first share a key, for its score: each takes a stride of its quads of dimensions. Then each takes one quad of dimensions and a stride
// of keys, for the weighted sum of values. Maximum and sum are corrected after each iteration (Milakov and Gimelshein, arXiv 1805.02867).
// A workgroup is mostly waiting for memory, so what it loads is on its way together: `key_part(start, part)`, written by Rust, is a
// sharer's part of a product, its loads first.

const TURN = WG / SHARERS;
const CREWS = WG / V_QUADS;
// Crews whose sums one invocation adds up at a time.
const FOLD = 8u;
const_assert HEAD_DIM == 4u * QUADS && V_DIM == 4u * V_QUADS && V_QUADS <= WG;

var<workgroup> weights: array<f32, TURN>;
var<workgroup> products: array<f32, WG>;
var<workgroup> sums: array<vec4<f32>, WG>;

// The weight of a turn's key number i; none past its keys.
fn weight_of(i: u32) -> f32 { return select(0.0, weights[min(i, TURN - 1u)], i < TURN); }

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let place = flat(workgroup, workgroups, 0u, 1u);
  let row = place / p.splits;
  let split = place % p.splits;
  if (row >= p.batch * p.heads * p.queries) {
    return;
  }
  let local = invocation.local;
  let at = row % p.queries;
  let head = row / p.queries % p.heads;
  let batch = row / (p.queries * p.heads);
  let kv_head = head / p.group;
  let q_start = p.q_offset + batch * p.q_batch + head * p.q_head + at * p.q_seq;
  let k_start = p.k_offset + batch * p.k_batch + kv_head * p.k_head;
  let v_start = p.v_offset + batch * p.v_batch + kv_head * p.v_head;
  for (var quad = local; quad < QUERY_QUADS; quad += WG) {
    var value = vec4<f32>(0.0);
    if (quad < QUADS) {
      value = q_quad(q_start, quad) * p.scale;
    }
    query[quad] = value;
  }
  var seen = p.keys;
  if (CAUSAL) {
    seen = p.keys - p.queries + at + 1u;
  }
  var first = split * p.chunk;
  var last = min(first + p.chunk, seen);
  if (RANGED) {
    // Parts of what this row sees.
    seen = seen_end(batch, at);
    let begin = min(seen_begin(batch, at), seen);
    let turns = (seen - begin + TURN - 1u) / TURN;
    let chunk = (turns + p.splits - 1u) / p.splits * TURN;
    first = begin + split * chunk;
    last = min(first + chunk, seen);
  }
  let position = position_of(batch, at);
  let crew = local / V_QUADS;
  let quad = local % V_QUADS;
  var most = LEAST;
  var sum = 0.0;
  if (SINKS && split == 0u) {
    most = sink_of(head);
    sum = select(0.0, 1.0, local == 0u);
  }
  var value = vec4<f32>(0.0);
  for (var turn = first; turn < last; turn += TURN) {
    workgroupBarrier();
    let key = turn + local / SHARERS;
    products[local] = key_part(k_start + min(key, last - 1u) * p.k_seq, local % SHARERS);
    workgroupBarrier();
    var score = LEAST;
    if (key < last) {
      score = 0.0;
      for (var sharer = 0u; sharer < SHARERS; sharer++) {
        score += products[local / SHARERS * SHARERS + sharer];
      }
      if (SOFTCAP) {
        score = p.softcap * f_tanh(score / p.softcap);
      }
      if (BIASED) {
        score = biased(score, batch, head, at, key, position);
      }
    }
    let higher = max(most, workgroup_max(score, invocation));
    let correction = exp(most - higher);
    most = higher;
    var weight = 0.0;
    if (key < last && (!BIASED || score > LEAST)) {
      weight = exp(score - most);
    }
    // All sharers have the score of their key; the first one counts it.
    sum *= correction;
    if (local % SHARERS == 0u) {
      weights[local / SHARERS] = weight;
      sum += weight;
    }
    value *= correction;
    workgroupBarrier();
    if (crew < CREWS) {
      // Eight values are on their way at once: one after the other, each would wait for the last.
      for (var i = crew; i < min(TURN, last - turn); i += 8u * CREWS) {
        let v0 = v_quad(v_start + min(turn + i + 0u * CREWS, last - 1u) * p.v_seq, quad);
        let v1 = v_quad(v_start + min(turn + i + 1u * CREWS, last - 1u) * p.v_seq, quad);
        let v2 = v_quad(v_start + min(turn + i + 2u * CREWS, last - 1u) * p.v_seq, quad);
        let v3 = v_quad(v_start + min(turn + i + 3u * CREWS, last - 1u) * p.v_seq, quad);
        let v4 = v_quad(v_start + min(turn + i + 4u * CREWS, last - 1u) * p.v_seq, quad);
        let v5 = v_quad(v_start + min(turn + i + 5u * CREWS, last - 1u) * p.v_seq, quad);
        let v6 = v_quad(v_start + min(turn + i + 6u * CREWS, last - 1u) * p.v_seq, quad);
        let v7 = v_quad(v_start + min(turn + i + 7u * CREWS, last - 1u) * p.v_seq, quad);
        value = fma(vec4<f32>(weight_of(i + 0u * CREWS)), v0, value);
        value = fma(vec4<f32>(weight_of(i + 1u * CREWS)), v1, value);
        value = fma(vec4<f32>(weight_of(i + 2u * CREWS)), v2, value);
        value = fma(vec4<f32>(weight_of(i + 3u * CREWS)), v3, value);
        value = fma(vec4<f32>(weight_of(i + 4u * CREWS)), v4, value);
        value = fma(vec4<f32>(weight_of(i + 5u * CREWS)), v5, value);
        value = fma(vec4<f32>(weight_of(i + 6u * CREWS)), v6, value);
        value = fma(vec4<f32>(weight_of(i + 7u * CREWS)), v7, value);
      }
    }
  }
  reduce(array<f32, COUNT>(sum), invocation);
  sums[local] = value;
  workgroupBarrier();
  if (crew < FOLD) {
    for (var other = crew + FOLD; other < CREWS; other += FOLD) {
      value += sums[other * V_QUADS + quad];
    }
    sums[local] = value;
  }
  workgroupBarrier();
  if (crew == 0u) {
    for (var other = 1u; other < min(FOLD, CREWS); other++) {
      value += sums[other * V_QUADS + quad];
    }
    sums[local] = value;
  }
  workgroupBarrier();
  store(row, place, most, total(0u), local);
}
