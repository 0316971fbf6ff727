// Attention of one query (a row: batch, head, query) to `chunk` keys in a workgroup, TURN keys per iteration. First SHARERS invocations
// share a key, for its score: each multiplies a stride of its quads of dimensions. Then each computes one quad of dimensions over a stride
// of keys, for the weighted sum of values. Maximum and sum are corrected after each iteration (Milakov and Gimelshein, arXiv 1805.02867). A
// workgroup mostly waits for memory, so its loads are in flight together: AHEAD quads of a key, then AHEAD values. Rust unrolls loops to
// constants (`unrolled`), and arrays become variables.

const TURN = WG / SHARERS;
const CREWS = WG / V_QUADS;
// Number of crews whose sums one invocation adds at a time.
const FOLD = 8u;
const QUADS = HEAD_DIM / 4u;
const V_QUADS = V_DIM / 4u;
// Number of a sharer's quads.
const STEPS = (QUADS + SHARERS - 1u) / SHARERS;
const QUERY_QUADS = STEPS * SHARERS;
const_assert HEAD_DIM % 4u == 0u && V_DIM % 4u == 0u && V_QUADS <= WG && BATCHES * AHEAD >= STEPS;

// The query has zeros for quads past the head.
var<workgroup> query: array<vec4<f32>, QUERY_QUADS>;
var<workgroup> weights: array<f32, TURN>;
var<workgroup> products: array<f32, WG>;
var<workgroup> sums: array<vec4<f32>, WG>;

// The weight of key number i of an iteration; 0 past its keys.
fn weight_of(i: u32) -> f32 { return select(0.0, weights[min(i, TURN - 1u)], i < TURN); }

// The product of the query with a sharer's part of the key that starts at `start`: quads `part`, `part + SHARERS` and so on.
fn key_part(start: u32, part: u32) -> f32 {
  var sum = vec4<f32>(0.0);
  for (var batch = 0u; batch < BATCHES; batch++) {
    var quads: array<vec4<f32>, AHEAD>;
    for (var i = 0u; i < AHEAD; i++) {
      if (batch * AHEAD + i < STEPS) {
        quads[i] = k_quad(start, min(part + (batch * AHEAD + i) * SHARERS, QUADS - 1u));
      }
    }
    for (var i = 0u; i < AHEAD; i++) {
      if (batch * AHEAD + i < STEPS) {
        sum = fma(query[part + (batch * AHEAD + i) * SHARERS], quads[i], sum);
      }
    }
  }
  return dot(sum, vec4<f32>(1.0));
}

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
    // Parts of the keys that this row sees.
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
    products[local] = key_part(k_start + key_place(batch, min(key, last - 1u)) * p.k_seq, local % SHARERS);
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
      // One at a time, each value would wait for the previous one.
      for (var first_key = crew; first_key < min(TURN, last - turn); first_key += AHEAD * CREWS) {
        var quads: array<vec4<f32>, AHEAD>;
        for (var i = 0u; i < AHEAD; i++) {
          quads[i] = v_quad(v_start + key_place(batch, min(turn + first_key + i * CREWS, last - 1u)) * p.v_seq, quad);
        }
        for (var i = 0u; i < AHEAD; i++) {
          value = fma(vec4<f32>(weight_of(first_key + i * CREWS)), quads[i], value);
        }
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
    store(row, split, quad, value, most, total(0u));
  }
}
