// Attention of ROWS queries that share keys and values to `chunk` keys in a workgroup of TX x TY invocations, KEYS keys a turn.
// A row is a query of one of `group` heads, the heads of a query next to each other, so that neighbours see the same keys. In a
// turn an invocation takes rows y + TY * i and keys x + TX * j for the scores; then the same rows and four dimensions (quads)
// x + TX * q of the weighted sums of values, which stay in its registers. Maximum and sum are corrected from turn to turn
// (Milakov and Gimelshein, arXiv 1805.02867). Keys, then values, are staged in `tile` if STAGED, else read where they are.
// Lines in capitals are written by Rust, unrolled.

const WG = TX * TY;
const QUADS = (HEAD_DIM + 3u) / 4u;
// Odd, so that the rows of a tile start in different banks.
const PITCH = QUADS | 1u;
const V_QUADS = (V_DIM + 3u) / 4u;
const V_PITCH = V_QUADS | 1u;
const KEY_QUADS = KEYS / 4u;
const_assert KEYS % 4u == 0u;

var<workgroup> queries: array<vec4<f32>, ROWS * PITCH>;
var<workgroup> tile: array<vec4<f32>, TILE_LEN>;
var<workgroup> scores: array<vec4<f32>, ROWS * KEY_QUADS>;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let rows = p.group * p.queries;
  let kv_heads = p.heads / p.group;
  let blocks = (rows + ROWS - 1u) / ROWS;
  let place = flat(workgroup, workgroups, 0u, 1u);
  let batch = place / (blocks * p.splits * kv_heads);
  if (batch >= p.batch) {
    return;
  }
  let kv_head = place / (blocks * p.splits) % kv_heads;
  let split = place / blocks % p.splits;
  // Of causal blocks the last ones take longest, so they start first.
  let first_row = (blocks - 1u - place % blocks) * ROWS;
  let x = local % TX;
  let y = local / TX;
  let q_start = p.q_offset + batch * p.q_batch + kv_head * p.group * p.q_head;
  let k_start = p.k_offset + batch * p.k_batch + kv_head * p.k_head;
  let v_start = p.v_offset + batch * p.v_batch + kv_head * p.v_head;
  for (var i = local; i < ROWS * QUADS; i += WG) {
    let row = first_row + i / QUADS;
    var value = vec4<f32>(0.0);
    if (row < rows) {
      value = q_quad(q_start + row % p.group * p.q_head + row / p.group * p.q_seq, i % QUADS) * p.scale;
    }
    queries[i / QUADS * PITCH + i % QUADS] = value;
  }
  var seen = p.keys;
  if (CAUSAL) {
    seen = p.keys - p.queries + (min(first_row + ROWS, rows) - 1u) / p.group + 1u;
  }
  var begin = split * p.chunk;
  var end = min(begin + p.chunk, seen);
  if (RANGED) {
    // Parts of what these rows see together: positions grow with rows.
    seen = seen_end(batch, (min(first_row + ROWS, rows) - 1u) / p.group);
    let first = min(seen_begin(batch, first_row / p.group), seen);
    let turns = (seen - first + KEYS - 1u) / KEYS;
    let chunk = (turns + p.splits - 1u) / p.splits * KEYS;
    begin = first + split * chunk;
    end = min(begin + chunk, seen);
  }
  DECLARE;
  for (var turn = begin; turn < end; turn += KEYS) {
    workgroupBarrier();
    if (STAGED) {
      for (var i = local; i < KEYS * QUADS; i += WG) {
        let key = turn + i / QUADS;
        var value = vec4<f32>(0.0);
        if (key < end) {
          value = k_quad(k_start + key * p.k_seq, i % QUADS);
        }
        tile[i / QUADS * PITCH + i % QUADS] = value;
      }
      workgroupBarrier();
    }
    BEGIN_SCORES;
    for (var d = 0u; d < QUADS; d++) {
      PRODUCTS;
    }
    PUT_SCORES;
    workgroupBarrier();
    if (STAGED) {
      for (var i = local; i < KEYS * V_QUADS; i += WG) {
        let key = turn + i / V_QUADS;
        var value = vec4<f32>(0.0);
        if (key < end) {
          value = v_quad(v_start + key * p.v_seq, i % V_QUADS);
        }
        tile[i / V_QUADS * V_PITCH + i % V_QUADS] = value;
      }
    }
    MAXIMA;
    workgroupBarrier();
    PUT_WEIGHTS;
    workgroupBarrier();
    for (var c = 0u; c < KEY_QUADS; c++) {
      SUMS;
    }
  }
  STORE;
}
