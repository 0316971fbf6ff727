// Attention of ROWS queries that share keys and values to `chunk` keys in a workgroup of TX x TY invocations, KEYS keys per iteration. A
// row is a query of one of `group` heads, with the heads of a query adjacent, so that neighbours see the same keys. In an iteration an
// invocation computes the scores of OWN_ROWS rows y + TY * i and OWN_KEYS keys x + TX * j; then, for the same rows, the weighted sums of
// values in four dimensions (quads) x + TX * q, OWN_QUADS of them, which stay in its registers. Maximum and sum are corrected in each
// iteration (Milakov and Gimelshein, arXiv 1805.02867). Keys, then values, are staged in `tile` if STAGED, else read from memory. Rust
// unrolls loops to constants (`unrolled`), and arrays become variables.

const WG = TX * TY;
const ROWS = TY * OWN_ROWS;
const KEYS = TX * OWN_KEYS;
const QUADS = (HEAD_DIM + 3u) / 4u;
// Odd, so that the rows of a tile start in different banks.
const PITCH = QUADS | 1u;
const V_QUADS = (V_DIM + 3u) / 4u;
const V_PITCH = V_QUADS | 1u;
const KEY_QUADS = KEYS / 4u;
const_assert KEYS % 4u == 0u && OWN_QUADS * TX >= V_QUADS;

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
  // The last of the causal blocks take longest, so they start first.
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
    // Parts of the keys that these rows see together: positions grow with rows.
    seen = seen_end(batch, (min(first_row + ROWS, rows) - 1u) / p.group);
    let first = min(seen_begin(batch, first_row / p.group), seen);
    let turns = (seen - first + KEYS - 1u) / KEYS;
    let chunk = (turns + p.splits - 1u) / p.splits * KEYS;
    begin = first + split * chunk;
    end = min(begin + chunk, seen);
  }
  // For each row: the maximum, the sum of weights, and the weighted sums of values.
  var most: array<f32, OWN_ROWS>;
  var sum: array<f32, OWN_ROWS>;
  var value: array<vec4<f32>, OWN_ROWS * OWN_QUADS>;
  // The end of the keys that it sees; and with more rules than CAUSAL, the first key, and the inputs of the rules.
  var limit: array<u32, OWN_ROWS>;
  var first_key: array<u32, OWN_ROWS>;
  var at: array<u32, OWN_ROWS>;
  var head: array<u32, OWN_ROWS>;
  var position: array<i32, OWN_ROWS>;
  for (var i = 0u; i < OWN_ROWS; i++) {
    let row = first_row + (y + i * TY);
    most[i] = LEAST;
    limit[i] = end;
    if (!PLAIN) {
      at[i] = row / p.group;
      head[i] = kv_head * p.group + row % p.group;
      position[i] = position_of(batch, at[i]);
      first_key[i] = seen_begin(batch, at[i]);
      limit[i] = select(0u, min(end, seen_end(batch, at[i])), row < rows);
      if (SINKS && split == 0u) {
        most[i] = sink_of(head[i]);
        sum[i] = 1.0;
      }
    } else if (CAUSAL) {
      limit[i] = min(end, p.keys - p.queries + row / p.group + 1u);
    }
  }
  for (var turn = begin; turn < end; turn += KEYS) {
    workgroupBarrier();
    if (STAGED) {
      for (var i = local; i < KEYS * QUADS; i += WG) {
        let key = turn + i / QUADS;
        var quad = vec4<f32>(0.0);
        if (key < end) {
          quad = k_quad(k_start + key_place(batch, key) * p.k_seq, i % QUADS);
        }
        tile[i / QUADS * PITCH + i % QUADS] = quad;
      }
      workgroupBarrier();
    }
    // Products are added lane by lane, and the lanes at the end.
    var products: array<vec4<f32>, OWN_ROWS * OWN_KEYS>;
    for (var d = 0u; d < QUADS; d++) {
      var key_quads: array<vec4<f32>, OWN_KEYS>;
      for (var j = 0u; j < OWN_KEYS; j++) {
        let key = x + j * TX;
        if (STAGED) {
          key_quads[j] = tile[key * PITCH + d];
        } else {
          key_quads[j] = k_quad(k_start + key_place(batch, min(turn + key, end - 1u)) * p.k_seq, d);
        }
      }
      for (var i = 0u; i < OWN_ROWS; i++) {
        let query = queries[(y + i * TY) * PITCH + d];
        for (var j = 0u; j < OWN_KEYS; j++) {
          products[i * OWN_KEYS + j] = fma(query, key_quads[j], products[i * OWN_KEYS + j]);
        }
      }
    }
    var score: array<f32, OWN_ROWS * OWN_KEYS>;
    for (var i = 0u; i < OWN_ROWS; i++) {
      for (var j = 0u; j < OWN_KEYS; j++) {
        let column = x + j * TX;
        let key = turn + column;
        var s = dot(products[i * OWN_KEYS + j], vec4<f32>(1.0));
        if (SOFTCAP) {
          s = p.softcap * f_tanh(s / p.softcap);
        }
        if (PLAIN) {
          s = select(LEAST, s, key < limit[i]);
        } else if (key < limit[i] && key >= first_key[i]) {
          s = biased(s, batch, head[i], at[i], key, position[i]);
        } else {
          s = LEAST;
        }
        score[i * OWN_KEYS + j] = s;
        scores[(y + i * TY) * KEY_QUADS + column / 4u][column % 4u] = s;
      }
    }
    workgroupBarrier();
    if (STAGED) {
      for (var i = local; i < KEYS * V_QUADS; i += WG) {
        let key = turn + i / V_QUADS;
        var quad = vec4<f32>(0.0);
        if (key < end) {
          quad = v_quad(v_start + key_place(batch, key) * p.v_seq, i % V_QUADS);
        }
        tile[i / V_QUADS * V_PITCH + i % V_QUADS] = quad;
      }
    }
    var higher: array<f32, OWN_ROWS>;
    for (var i = 0u; i < OWN_ROWS; i++) {
      higher[i] = most[i];
      for (var c = 0u; c < KEY_QUADS; c++) {
        let s = scores[(y + i * TY) * KEY_QUADS + c];
        higher[i] = max(higher[i], max(max(s.x, s.y), max(s.z, s.w)));
      }
    }
    workgroupBarrier();
    for (var i = 0u; i < OWN_ROWS; i++) {
      let correction = exp(most[i] - higher[i]);
      most[i] = higher[i];
      sum[i] *= correction;
      for (var q = 0u; q < OWN_QUADS; q++) {
        value[i * OWN_QUADS + q] *= correction;
      }
      for (var j = 0u; j < OWN_KEYS; j++) {
        let column = x + j * TX;
        // A row that sees none of these keys has no maximum, and no weights.
        let shown = select(score[i * OWN_KEYS + j] > LEAST, turn + column < limit[i], PLAIN);
        let weight = select(0.0, exp(score[i * OWN_KEYS + j] - most[i]), shown);
        scores[(y + i * TY) * KEY_QUADS + column / 4u][column % 4u] = weight;
      }
    }
    workgroupBarrier();
    for (var c = 0u; c < KEY_QUADS; c++) {
      var weights: array<vec4<f32>, OWN_ROWS>;
      for (var i = 0u; i < OWN_ROWS; i++) {
        weights[i] = scores[(y + i * TY) * KEY_QUADS + c];
        sum[i] += dot(weights[i], vec4<f32>(1.0));
      }
      for (var lane = 0u; lane < FOUR; lane++) {
        for (var q = 0u; q < OWN_QUADS; q++) {
          // Past the last quad a value is read that is never stored.
          let quad = min(x + q * TX, V_QUADS - 1u);
          var v_part: vec4<f32>;
          if (STAGED) {
            v_part = tile[(c * 4u + lane) * V_PITCH + quad];
          } else {
            v_part = v_quad(v_start + key_place(batch, min(turn + c * 4u + lane, end - 1u)) * p.v_seq, quad);
          }
          for (var i = 0u; i < OWN_ROWS; i++) {
            value[i * OWN_QUADS + q] = fma(vec4<f32>(weights[i][lane]), v_part, value[i * OWN_QUADS + q]);
          }
        }
      }
    }
  }
  for (var i = 0u; i < OWN_ROWS; i++) {
    let row = first_row + (y + i * TY);
    if (row < rows) {
      let dst_row = (batch * p.heads + kv_head * p.group + row % p.group) * p.queries + row / p.group;
      for (var q = 0u; q < OWN_QUADS; q++) {
        if (x + q * TX < V_QUADS) {
          store(dst_row, split, x + q * TX, value[i * OWN_QUADS + q], most[i], sum[i]);
        }
      }
    }
  }
}
