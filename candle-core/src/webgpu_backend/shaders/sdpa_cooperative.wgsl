// Attention of ROWS queries that share keys and values to `chunk` keys, KEYS per iteration, with matrices of 16 x 16 that a subgroup of 32
// holds together. A team of COLUMNS subgroups has FRAGMENTS times 16 rows; a row is a query of one of `group` heads, with the heads of a
// query adjacent. In an iteration a subgroup multiplies the team's queries, which stay in matrices, by its part of the keys, each of which
// it loads once for all of its rows. HALVES lanes per row convert the scores to weights. Then it adds its part of the weighted values to
// its sums, which stay in matrices too. The weights of a row are relative to a maximum that moves only when an iteration's is far above it,
// because the sums have to pass through workgroup memory to be corrected. While an iteration is computed, the loads of the next keys and
// values are in flight; if registers are scarce (not AHEAD), only the values' loads during the scores, and only the next keys' during the
// sums. Rust unrolls loops to constants (`unrolled`), and arrays become variables: naga does not support arrays of cooperative matrices.

// The maximum before any score: below all scores, and far enough above LEAST that a hidden key has no weight.
const NONE = -0x1p+100f;
// Weights are powers of 2.
const LOG2_E = 1.44269504f;
const LN_2 = 0.693147181f;
// Maximum excess of a score over the maximum, as a power of 2: weights up to 1024 lose nothing in f16.
const HEADROOM = 10.0;
// Rows of a team of COLUMNS subgroups, and lanes per row.
const OWN_ROWS = FRAGMENTS * 16u;
const TEAMS = SUBGROUPS / COLUMNS;
const HALVES = 2u * COLUMNS / FRAGMENTS;
const ROWS = TEAMS * OWN_ROWS;
const WG = SUBGROUPS * 32u;
const QUADS = HEAD_DIM / 4u;
const KEY_QUADS = KEYS / 4u;
// Number of matrices along a head (ALONG), and of a subgroup along a value (V_ALONG) and across the keys (ACROSS); sums pass through the
// scores' memory in ROUNDS. Rows are padded against bank conflicts.
const PITCH = QUADS + 2u;
const V_QUADS = V_DIM / 4u;
const V_PITCH = V_QUADS + 2u;
const KEY_PITCH = KEY_QUADS + 2u;
// Quads of a subgroup among a row's scores, and along a value.
const OWN_SCORES = KEY_QUADS / COLUMNS;
const OWN_VALUES = V_QUADS / COLUMNS;
// Puts scores that lanes read together into different banks.
const SCORE_PITCH = KEY_QUADS + HALVES;
// The offset of the tile's values.
const VALUES = KEYS * PITCH;
const_assert HEAD_DIM % 16u == 0u && V_DIM % 16u == 0u && KEYS % 16u == 0u && FRAGMENTS <= 2u && SUBGROUPS % COLUMNS == 0u && HALVES <= 2u;
const_assert KEY_LOADS * WG == KEYS * QUADS && VALUE_LOADS * WG == KEYS * V_QUADS && OWN_QUADS * HALVES == KEY_QUADS;
const_assert ALONG * 16u == HEAD_DIM && V_ALONG * COLUMNS * 16u == V_DIM && ACROSS * COLUMNS * 16u == KEYS && ROUNDS * ACROSS >= V_ALONG;
const_assert OUTER * INNER == ALONG;
const_assert TILE_LEN >= VALUES + KEYS * V_PITCH && TILE_LEN >= TEAMS * 16u * PITCH;

// Keys, then values; before the first iteration, queries, 16 of each team at a time.
var<workgroup> tile: array<Four, TILE_LEN>;
// Scores; later the sums, when they are corrected and stored.
var<workgroup> scores: array<vec4<f32>, ROWS * SCORE_PITCH>;
var<workgroup> weights: array<Four, ROWS * KEY_PITCH>;
// This iteration, and the last one in which some row's sums had to be corrected: in workgroup memory, where naga treats them as uniform,
// and in 16 bytes each, so that the arrays above are aligned for matrices in any order.
var<workgroup> turns: array<vec4<u32>, 2>;

// Quad `i` of a tile of keys or values of a row of the batch that starts at `first`, zeros from `end`.
fn key_at(batch: u32, start: u32, first: u32, end: u32, i: u32) -> Four {
  var value = Four();
  if (first + i / QUADS < end) {
    value = k_quad(start + key_place(batch, first + i / QUADS) * p.k_seq, i % QUADS);
  }
  return value;
}

fn value_at(batch: u32, start: u32, first: u32, end: u32, i: u32) -> Four {
  var value = Four();
  if (first + i / V_QUADS < end) {
    value = v_quad(start + key_place(batch, first + i / V_QUADS) * p.v_seq, i % V_QUADS);
  }
  return value;
}

// The index of quad `i` of keys in the tile; values follow them.
fn tile_place(i: u32) -> u32 {
  return i / QUADS * PITCH + i % QUADS;
}

fn value_place(i: u32) -> u32 {
  return VALUES + i / V_QUADS * V_PITCH + i % V_QUADS;
}

// A quad of queries for the matrices. Queries that are not f16 are scaled before the conversion, which keeps large ones in its range; one
// that is still too large becomes the largest number, because with infinities scores would be NaN.
fn query_at(start: u32, quad: u32) -> Four {
  if (SCALED) {
    return Four(clamp(vec4<f32>(q_quad(start, quad)) * p.scale, vec4<f32>(-65504.0), vec4<f32>(65504.0)));
  }
  return Four(q_quad(start, quad));
}

// Writes the queries of one fragment of each team to the tile, zeros from row `rows` on.
fn stage_queries(start: u32, first_row: u32, rows: u32, fragment: u32, local: u32) {
  for (var i = local; i < TEAMS * 16u * QUADS; i += WG) {
    let at = i / QUADS;
    let row = first_row + at / 16u * OWN_ROWS + fragment * 16u + at % 16u;
    var value = Four();
    if (row < rows) {
      value = query_at(start + row % p.group * p.q_head + row / p.group * p.q_seq, i % QUADS);
    }
    tile[tile_place(i)] = value;
  }
}

// Four scores in powers of 2; keys before `own.first` and from `own.limit` on are hidden.
struct Own {
  first: u32,
  limit: u32,
  position: i32,
  slope: f32,
}

fn shown(score: vec4<f32>, key: u32, own: Own) -> vec4<f32> {
  // The scale, if the queries do not include it.
  let scale = select(p.scale, 1.0, SCALED);
  var s = score * (scale * LOG2_E);
  if (SOFTCAP) {
    s = score * (scale / p.softcap);
    s = vec4<f32>(f_tanh(s.x), f_tanh(s.y), f_tanh(s.z), f_tanh(s.w)) * (p.softcap * LOG2_E);
  }
  let keys = vec4<u32>(key) + vec4<u32>(0u, 1u, 2u, 3u);
  if (SLOPES) {
    s -= own.slope * LOG2_E * vec4<f32>(abs(vec4<i32>(keys) - vec4<i32>(own.position)));
  }
  if (LEFT) {
    s = select(vec4<f32>(LEAST), s, keys >= vec4<u32>(own.first));
  }
  return select(vec4<f32>(LEAST), s, keys < vec4<u32>(own.limit));
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
) {
  let all_rows = p.group * p.queries;
  let kv_heads = p.heads / p.group;
  let blocks = (all_rows + ROWS - 1u) / ROWS;
  let count = p.batch * kv_heads * p.splits * blocks;
  let at = flat(workgroup, workgroups, 0u, 1u);
  // Cooperative matrices need uniform control flow, which naga does not recognise past a return: workgroups beyond the last repeat its work
  // without writing rows.
  let place = min(at, count - 1u);
  let rows = select(0u, all_rows, at < count);
  let batch = place / (blocks * p.splits * kv_heads);
  let kv_head = place / (blocks * p.splits) % kv_heads;
  let split = place / blocks % p.splits;
  // The last of the causal blocks take longest, so they start first.
  let first_row = (blocks - 1u - place % blocks) * ROWS;
  let q_start = p.q_offset + batch * p.q_batch + kv_head * p.group * p.q_head;
  let k_start = p.k_offset + batch * p.k_batch + kv_head * p.k_head;
  let v_start = p.v_offset + batch * p.v_batch + kv_head * p.v_head;
  var seen = p.keys;
  if (CAUSAL) {
    seen = p.keys - p.queries + (min(first_row + ROWS, all_rows) - 1u) / p.group + 1u;
  }
  var begin = split * p.chunk;
  var end = min(begin + p.chunk, seen);
  if (RANGED) {
    // Parts of the keys that these rows see together: positions grow with rows.
    seen = seen_end(batch, (min(first_row + ROWS, all_rows) - 1u) / p.group);
    let first = min(seen_begin(batch, first_row / p.group), seen);
    let steps = (seen - first + KEYS - 1u) / KEYS;
    let chunk = (steps + p.splits - 1u) / p.splits * KEYS;
    begin = first + split * chunk;
    end = min(begin + chunk, seen);
  }
  if (local == 0u) {
    turns[1].x = 0xffffffffu;
  }
  // A subgroup's first row in each array, and its first keys and values; the row of this lane, of which it has every quad, or every second
  // one.
  let column = subgroup % COLUMNS;
  let tile_row = subgroup / COLUMNS * 16u * PITCH;
  let score_row = subgroup / COLUMNS * OWN_ROWS * SCORE_PITCH + column * OWN_SCORES;
  let key_row = subgroup / COLUMNS * OWN_ROWS * KEY_PITCH;
  let own_keys = column * 16u * ACROSS * PITCH;
  let own_values = VALUES + column * OWN_VALUES;
  let at_row = subgroup * (32u / HALVES) + lane / HALVES;
  let half = lane % HALVES;
  let mine = at_row * SCORE_PITCH + half;
  let my_weights = at_row * KEY_PITCH + half;
  let row = first_row + at_row;
  let head = kv_head * p.group + row % p.group;
  var own = Own(0u, end, 0, 0.0);
  if (CAUSAL) {
    own.limit = min(end, p.keys - p.queries + row / p.group + 1u);
  }
  if (RANGED) {
    own.first = seen_begin(batch, row / p.group);
    own.limit = min(end, seen_end(batch, row / p.group));
  }
  if (SLOPES) {
    own.position = position_of(batch, row / p.group);
    own.slope = slope_of(head);
  }
  var most = NONE;
  var sum = 0.0;
  if (SINKS && split == 0u) {
    most = max(sink_of(head) * LOG2_E, NONE);
    sum = select(0.0, 1.0, half == 0u);
  }
  // The next keys and values, the queries, and the sums, with room for the last round.
  var next_keys: array<Four, KEY_LOADS>;
  var next_values: array<Four, VALUE_LOADS>;
  var queries: array<coop_mat16x16<f16, A>, FRAGMENTS * ALONG>;
  var sums: array<coop_mat16x16<f32, C>, FRAGMENTS * ROUNDS * ACROSS>;
  // naga 30 does not emit a store's operands unless they have names.
  let pitch = SCORE_PITCH;
  for (var i = 0u; i < KEY_LOADS; i++) {
    next_keys[i] = key_at(batch, k_start, begin, end, local + i * WG);
  }
  for (var i = 0u; i < VALUE_LOADS; i++) {
    next_values[i] = value_at(batch, v_start, begin, end, local + i * WG);
  }
  for (var r = 0u; r < FRAGMENTS; r++) {
    stage_queries(q_start, first_row, rows, r, local);
    workgroupBarrier();
    for (var d = 0u; d < ALONG; d++) {
      queries[r * ALONG + d] = coopLoadT<coop_mat16x16<f16, A>>(&tile[tile_row + 4u * d], PITCH);
    }
    workgroupBarrier();
  }
  for (var i = 0u; i < KEY_LOADS; i++) {
    tile[tile_place(local + i * WG)] = next_keys[i];
  }
  if (AHEAD) {
    for (var i = 0u; i < KEY_LOADS; i++) {
      next_keys[i] = key_at(batch, k_start, begin + KEYS, end, local + i * WG);
    }
  }
  workgroupBarrier();
  for (var turn = begin; turn < end; turn += KEYS) {
    // Independent products are adjacent, so with one fragment those of a key come in OUTER passes; two fragments have enough of them, and
    // too few registers.
    var products: array<coop_mat16x16<f32, C>, FRAGMENTS * ACROSS>;
    for (var outer = 0u; outer < OUTER; outer++) {
      for (var j = 0u; j < ACROSS; j++) {
        for (var inner = 0u; inner < INNER; inner++) {
          let keys = coopLoad<coop_mat16x16<f16, B>>(&tile[own_keys + 16u * j * PITCH + 4u * (outer * INNER + inner)], PITCH);
          for (var r = 0u; r < FRAGMENTS; r++) {
            products[r * ACROSS + j] = coopMultiplyAdd(queries[r * ALONG + outer * INNER + inner], keys, products[r * ACROSS + j]);
          }
        }
        if (outer + 1u == OUTER) {
          for (var r = 0u; r < FRAGMENTS; r++) {
            let whole = products[r * ACROSS + j];
            let place = score_row + 16u * r * SCORE_PITCH + 4u * j;
            let slot = &scores[place];
            coopStoreT(whole, slot, pitch);
          }
        }
      }
    }
    workgroupBarrier();
    if (local == 0u) {
      turns[0].x = turn;
    }
    let first_key = turn + half * 4u;
    var highest = vec4<f32>(LEAST);
    var own_scores: array<vec4<f32>, OWN_QUADS>;
    for (var c = 0u; c < OWN_QUADS; c++) {
      own_scores[c] = shown(scores[mine + HALVES * c], first_key + 4u * HALVES * c, own);
      highest = max(highest, own_scores[c]);
    }
    let own_most = max(max(highest.x, highest.y), max(highest.z, highest.w));
    var turn_most = own_most;
    if (HALVES == 2u) {
      turn_most = max(own_most, other_half(own_most, local));
    }
    var correction = 1.0;
    if (turn_most > most + HEADROOM) {
      correction = exp2(most - turn_most);
      if (most > NONE) {
        turns[1].x = turn;
      }
      most = turn_most;
      sum *= correction;
    }
    var turn_sum = vec4<f32>(0.0);
    for (var c = 0u; c < OWN_QUADS; c++) {
      let weight = exp2(own_scores[c] - most);
      turn_sum += weight;
      weights[my_weights + HALVES * c] = Four(weight);
    }
    sum += dot(turn_sum, vec4<f32>(1.0));
    for (var i = 0u; i < VALUE_LOADS; i++) {
      tile[value_place(local + i * WG)] = next_values[i];
    }
    if (AHEAD) {
      for (var i = 0u; i < KEY_LOADS; i++) {
        tile[tile_place(local + i * WG)] = next_keys[i];
      }
    }
    workgroupBarrier();
    if (AHEAD) {
      for (var i = 0u; i < VALUE_LOADS; i++) {
        next_values[i] = value_at(batch, v_start, turn + KEYS, end, local + i * WG);
      }
      for (var i = 0u; i < KEY_LOADS; i++) {
        next_keys[i] = key_at(batch, k_start, turn + 2u * KEYS, end, local + i * WG);
      }
    } else {
      for (var i = 0u; i < KEY_LOADS; i++) {
        next_keys[i] = key_at(batch, k_start, turn + KEYS, end, local + i * WG);
      }
    }
    // The same in all invocations.
    if (turns[1].x == turns[0].x) {
      for (var round = 0u; round < ROUNDS; round++) {
        for (var r = 0u; r < FRAGMENTS; r++) {
          for (var i = 0u; i < ACROSS; i++) {
            if (round * ACROSS + i < V_ALONG) {
              let whole = sums[(r * ROUNDS + round) * ACROSS + i];
              let place = score_row + 16u * r * SCORE_PITCH + 4u * i;
              let slot = &scores[place];
              coopStoreT(whole, slot, pitch);
            }
          }
        }
        workgroupBarrier();
        for (var c = 0u; c < KEY_QUADS; c += HALVES) {
          scores[mine + c] *= correction;
        }
        workgroupBarrier();
        for (var r = 0u; r < FRAGMENTS; r++) {
          for (var i = 0u; i < ACROSS; i++) {
            if (round * ACROSS + i < V_ALONG) {
              let place = score_row + 16u * r * SCORE_PITCH + 4u * i;
              sums[(r * ROUNDS + round) * ACROSS + i] = coopLoadT<coop_mat16x16<f32, C>>(&scores[place], SCORE_PITCH);
            }
          }
        }
        workgroupBarrier();
      }
    }
    for (var j = 0u; j < ALL_ACROSS; j++) {
      var lefts: array<coop_mat16x16<f16, A>, FRAGMENTS>;
      for (var r = 0u; r < FRAGMENTS; r++) {
        lefts[r] = coopLoadT<coop_mat16x16<f16, A>>(&weights[key_row + 16u * r * KEY_PITCH + 4u * j], KEY_PITCH);
      }
      for (var d = 0u; d < V_ALONG; d++) {
        let values = coopLoadT<coop_mat16x16<f16, B>>(&tile[own_values + 16u * j * V_PITCH + 4u * d], V_PITCH);
        for (var r = 0u; r < FRAGMENTS; r++) {
          sums[r * ROUNDS * ACROSS + d] = coopMultiplyAdd(lefts[r], values, sums[r * ROUNDS * ACROSS + d]);
        }
      }
    }
    if (!AHEAD) {
      for (var i = 0u; i < KEY_LOADS; i++) {
        tile[tile_place(local + i * WG)] = next_keys[i];
      }
      for (var i = 0u; i < VALUE_LOADS; i++) {
        next_values[i] = value_at(batch, v_start, turn + KEYS, end, local + i * WG);
      }
      workgroupBarrier();
    }
  }
  var whole_sum = sum;
  if (HALVES == 2u) {
    whole_sum += other_half(sum, local);
  }
  let dst_row = (batch * p.heads + kv_head * p.group + row % p.group) * p.queries + row / p.group;
  for (var round = 0u; round < ROUNDS; round++) {
    for (var r = 0u; r < FRAGMENTS; r++) {
      for (var i = 0u; i < ACROSS; i++) {
        if (round * ACROSS + i < V_ALONG) {
          let whole = sums[(r * ROUNDS + round) * ACROSS + i];
          let place = score_row + 16u * r * SCORE_PITCH + 4u * i;
          let slot = &scores[place];
          coopStoreT(whole, slot, pitch);
        }
      }
    }
    workgroupBarrier();
    if (row < rows) {
      for (var c = half; c < KEY_QUADS; c += HALVES) {
        let quad = OWN_SCORES * round + c % OWN_SCORES;
        if (quad < OWN_VALUES) {
          store(dst_row, split, c / OWN_SCORES * OWN_VALUES + quad, scores[mine + c - half], most * LN_2, whole_sum);
        }
      }
    }
    workgroupBarrier();
  }
}
