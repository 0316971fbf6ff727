// Attention of few queries, with subgroups: of ROWS rows that share keys and values, so that these are read once for all of them, to
// `chunk` keys in a workgroup. A row is a query of one of `group` heads, with the heads of a query adjacent. The result of a row does not
// depend on the number of texts, nor on the lengths of others, in a single bit. TURN keys per iteration: a team of TEAM lanes processes
// AHEAD of them, PACKS times 16 bytes of each per lane, with all loads in flight before the first is waited for. Every team keeps the
// maximum, the sum and the weighted sums of its keys, which are joined at the end (Milakov and Gimelshein, arXiv 1805.02867), so no
// iteration has a barrier. A lane computes the weights of the scores that it has after the sums over the team, for one row, and teams
// exchange them. Rust unrolls loops to constants (`unrolled`), and arrays become variables.

// The maximum before any score: below all scores, and far enough above LEAST that a hidden key has no weight.
const NONE = -0x1p+100f;
// Weights are powers of 2.
const LOG2_E = 1.44269504f;
const LN_2 = 0.693147181f;
// Maximum excess of a score over the value that stands for the maximum, as a power of 2: f32 loses nothing up to there.
const HEADROOM = 10.0;
const QUADS = HEAD_DIM / 4u;
const V_QUADS = V_DIM / 4u;
const PIECES = HEAD_DIM / PIECE;
const V_PIECES = V_DIM / PIECE;
const TEAMS = WG / TEAM;
const TURN = TEAMS * AHEAD;
const SUBGROUPS = WG / SUBGROUP;
// Lanes with a row's scores, and neighbours with the same score.
const ROW_LANES = TEAM / ROW_SLOTS;
const SAME = TEAM * OUTPUTS / (ROW_SLOTS * AHEAD);
const_assert PIECE_QUADS * 4u == PIECE && HEAD_DIM % PIECE == 0u && V_DIM % PIECE == 0u;
const_assert PACKS * TEAM >= PIECES && PACKS * TEAM >= V_PIECES && ROWS <= ROW_SLOTS && ROW_SLOTS <= TEAM;
const_assert SUBGROUP % TEAM == 0u && WG % SUBGROUP == 0u && SPREAD * OUTPUTS == AHEAD && FOLDS * FOLD >= ROWS;

struct Invocation {
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
}

// The maximum and the sum of weights of each row in a subgroup, then its weighted sums.
var<workgroup> subgroup_most: array<f32, ROWS * SUBGROUPS>;
var<workgroup> subgroup_sum: array<f32, ROWS * SUBGROUPS>;
var<workgroup> partials: array<vec4<f32>, FOLD * SUBGROUPS * V_QUADS>;

// Quad i of 16 bytes of keys or values.
fn quad_of(piece: vec4<u32>, i: u32) -> vec4<f32> {
  if (PIECE == 4u) {
    return bitcast<vec4<f32>>(piece);
  }
  let words = select(piece.xy, piece.zw, i == 1u);
  if (KV_BF16) {
    return bitcast<vec4<f32>>(vec4<u32>(words.x << 16u, words.x & 0xffff0000u, words.y << 16u, words.y & 0xffff0000u));
  }
  return vec4<f32>(unpack2x16float(words.x), unpack2x16float(words.y));
}

// The maximum over the lanes with scores of a row.
fn highest_of_row(x: f32) -> f32 {
  var highest = x;
  if (SAME <= 1u && ROW_LANES > 1u) {
    highest = max(highest, subgroupShuffleXor(highest, 1u));
  }
  if (SAME <= 2u && ROW_LANES > 2u) {
    highest = max(highest, subgroupShuffleXor(highest, 2u));
  }
  if (SAME <= 4u && ROW_LANES > 4u) {
    highest = max(highest, subgroupShuffleXor(highest, 4u));
  }
  if (SAME <= 8u && ROW_LANES > 8u) {
    highest = max(highest, subgroupShuffleXor(highest, 8u));
  }
  if (SAME <= 16u && ROW_LANES > 16u) {
    highest = max(highest, subgroupShuffleXor(highest, 16u));
  }
  return highest;
}

// Half of the sums of two lanes at distance `step`: the first is kept by the lower of them, the second by the upper.
fn exchanged(lower: f32, upper: f32, place: u32, step: u32) -> f32 {
  let is_upper = (place & step) != 0u;
  return select(lower, upper, is_upper) + subgroupShuffleXor(select(upper, lower, is_upper), step);
}

fn add_product(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let all_rows = p.group * p.queries;
  let kv_heads = p.heads / p.group;
  let blocks = (all_rows + ROWS - 1u) / ROWS;
  let number = flat(workgroup, workgroups, 0u, 1u);
  let batch = number / (p.splits * blocks * kv_heads);
  if (batch >= p.batch) {
    return;
  }
  let kv_head = number / (p.splits * blocks) % kv_heads;
  let first_row = number / p.splits % blocks * ROWS;
  let split = number % p.splits;
  let first_head = kv_head * p.group;
  // Ensures that neighbours by number are neighbours in a subgroup.
  let local = invocation.subgroup * SUBGROUP + invocation.lane;
  let place = local % TEAM;
  let team = local / TEAM;
  // The team's first lane in its subgroup.
  let team_lane = invocation.lane - place;
  // The row whose scores this lane has, and the first of its keys among the AHEAD.
  let own_row = place / ROW_LANES;
  let own_at = place % ROW_LANES / SAME * OUTPUTS;
  let scale = select(p.scale * LOG2_E, p.scale / p.softcap, SOFTCAP);
  var query: array<vec4<f32>, ROWS * PACKS_QUADS>;
  for (var row = 0u; row < ROWS; row++) {
    // Rows past the last repeat it.
    let of_all = min(first_row + row, all_rows - 1u);
    let start = p.q_offset + batch * p.q_batch + (first_head + of_all % p.group) * p.q_head + of_all / p.group * p.q_seq;
    for (var pack = 0u; pack < PACKS; pack++) {
      for (var quad = 0u; quad < PIECE_QUADS; quad++) {
        let at = (pack * TEAM + place) * PIECE_QUADS + quad;
        query[row * PACKS_QUADS + pack * PIECE_QUADS + quad] = q_quad(start, min(at, QUADS - 1u)) * select(0.0, scale, at < QUADS);
      }
    }
  }
  let last_at = (min(first_row + ROWS, all_rows) - 1u) / p.group;
  // The keys that these rows see together: positions grow with rows.
  var begin = 0u;
  var seen = p.keys;
  if (CAUSAL) {
    seen = p.keys - p.queries + last_at + 1u;
  }
  if (RANGED) {
    seen = seen_end(batch, last_at);
    begin = min(seen_begin(batch, first_row / p.group), seen);
  }
  // The length of a part depends on the length of this text only.
  var chunk = p.chunk;
  if (seen - begin <= SINGLE) {
    chunk = SINGLE;
  }
  while (chunk * p.splits < seen - begin) {
    chunk *= 2u;
  }
  let first = begin + split * chunk;
  let last = min(first + chunk, seen);
  // The keys that the row of this lane sees, and its bias by distance.
  var own_first = 0u;
  var own_end = 0u;
  var position = 0;
  var slope = 0.0;
  if (own_row < ROWS && first_row + own_row < all_rows) {
    let at = (first_row + own_row) / p.group;
    own_end = last;
    if (CAUSAL) {
      own_end = min(last, p.keys - p.queries + at + 1u);
    }
    if (RANGED) {
      own_first = seen_begin(batch, at);
      own_end = min(last, seen_end(batch, at));
    }
    if (SLOPES) {
      position = position_of(batch, at);
      slope = slope_of(first_head + (first_row + own_row) % p.group) * LOG2_E;
    }
  }
  // In units of 16 bytes.
  let k_start = (p.k_offset + batch * p.k_batch + kv_head * p.k_head) / PIECE;
  let v_start = (p.v_offset + batch * p.v_batch + kv_head * p.v_head) / PIECE;
  let k_step = p.k_seq / PIECE;
  let v_step = p.v_seq / PIECE;
  var most = NONE;
  var sum = 0.0;
  // With space for the last fold.
  var value: array<vec4<f32>, FOLDS * FOLD * PACKS_QUADS>;
  for (var turn = first; turn < last; turn += TURN) {
    var keys: array<vec4<u32>, AHEAD * PACKS>;
    var values: array<vec4<u32>, AHEAD * PACKS>;
    for (var a = 0u; a < AHEAD; a++) {
      let at = key_place(batch, min(turn + a * TEAMS + team, last - 1u));
      for (var pack = 0u; pack < PACKS; pack++) {
        keys[a * PACKS + pack] = k[k_start + at * k_step + min(pack * TEAM + place, PIECES - 1u)];
        values[a * PACKS + pack] = v[v_start + at * v_step + min(pack * TEAM + place, V_PIECES - 1u)];
      }
    }
    var sums: array<f32, ROW_SLOTS * AHEAD>;
    for (var pack = 0u; pack < PACKS; pack++) {
      for (var quad = 0u; quad < PIECE_QUADS; quad++) {
        for (var a = 0u; a < AHEAD; a++) {
          let key_quad = quad_of(keys[a * PACKS + pack], quad);
          for (var row = 0u; row < ROWS; row++) {
            sums[row * AHEAD + a] = add_product(query[row * PACKS_QUADS + pack * PIECE_QUADS + quad], key_quad, sums[row * AHEAD + a]);
          }
        }
      }
    }
    SUMS_OVER_TEAM
    var highest = LEAST;
    var weights: array<f32, OUTPUTS>;
    for (var output = 0u; output < OUTPUTS; output++) {
      let key = turn + (own_at + output) * TEAMS + team;
      var score = sums[output];
      if (SOFTCAP) {
        score = f_tanh(score) * (p.softcap * LOG2_E);
      }
      if (SLOPES) {
        score -= slope * f32(abs(i32(key) - position));
      }
      weights[output] = select(score, LEAST, key < own_first || key >= own_end);
      highest = max(highest, weights[output]);
    }
    highest = highest_of_row(highest);
    // The maximum moves only when a score is far above it.
    let higher = select(most, highest, highest > most + HEADROOM);
    let correction = exp2(most - higher);
    most = higher;
    sum *= correction;
    for (var output = 0u; output < OUTPUTS; output++) {
      weights[output] = exp2(weights[output] - most);
      sum += weights[output];
    }
    for (var row = 0u; row < ROWS; row++) {
      let by = subgroupShuffle(correction, team_lane + row * ROW_LANES);
      for (var quad = 0u; quad < PACKS_QUADS; quad++) {
        value[row * PACKS_QUADS + quad] *= by;
      }
    }
    for (var output = 0u; output < OUTPUTS; output++) {
      for (var part = 0u; part < SPREAD; part++) {
        var by_row: array<f32, ROWS>;
        for (var row = 0u; row < ROWS; row++) {
          by_row[row] = subgroupShuffle(weights[output], team_lane + row * ROW_LANES + part * SAME);
        }
        for (var pack = 0u; pack < PACKS; pack++) {
          for (var quad = 0u; quad < PIECE_QUADS; quad++) {
            let value_quad = quad_of(values[(part * OUTPUTS + output) * PACKS + pack], quad);
            for (var row = 0u; row < ROWS; row++) {
              value[row * PACKS_QUADS + pack * PIECE_QUADS + quad] =
                fma(vec4<f32>(by_row[row]), value_quad, value[row * PACKS_QUADS + pack * PIECE_QUADS + quad]);
            }
          }
        }
      }
    }
  }
  // Joins the lanes of a row, then the teams of a subgroup.
  var whole_most = most;
  for (var step = TEAM; step < SUBGROUP; step *= 2u) {
    whole_most = max(whole_most, subgroupShuffleXor(whole_most, step));
  }
  let correction = exp2(most - whole_most);
  sum *= correction;
  for (var step = SAME; step < ROW_LANES; step *= 2u) {
    sum += subgroupShuffleXor(sum, step);
  }
  for (var step = TEAM; step < SUBGROUP; step *= 2u) {
    sum += subgroupShuffleXor(sum, step);
  }
  for (var row = 0u; row < ROWS; row++) {
    let by = subgroupShuffle(correction, team_lane + row * ROW_LANES);
    for (var quad = 0u; quad < PACKS_QUADS; quad++) {
      var whole = value[row * PACKS_QUADS + quad] * by;
      for (var step = TEAM; step < SUBGROUP; step *= 2u) {
        whole += subgroupShuffleXor(whole, step);
      }
      value[row * PACKS_QUADS + quad] = whole;
    }
  }
  if (team_lane == 0u && place % ROW_LANES == 0u && own_row < ROWS) {
    subgroup_most[own_row * SUBGROUPS + invocation.subgroup] = whole_most;
    subgroup_sum[own_row * SUBGROUPS + invocation.subgroup] = sum;
  }
  for (var fold = 0u; fold < FOLDS; fold++) {
    if (team_lane == 0u) {
      for (var i = 0u; i < FOLD; i++) {
        for (var pack = 0u; pack < PACKS; pack++) {
          for (var quad = 0u; quad < PIECE_QUADS; quad++) {
            let at = (pack * TEAM + place) * PIECE_QUADS + quad;
            if (fold * FOLD + i < ROWS && at < V_QUADS) {
              partials[(i * SUBGROUPS + invocation.subgroup) * V_QUADS + at] = value[(fold * FOLD + i) * PACKS_QUADS + pack * PIECE_QUADS + quad];
            }
          }
        }
      }
    }
    workgroupBarrier();
    for (var i = local; i < min(FOLD, ROWS - fold * FOLD) * V_QUADS; i += WG) {
      let row = fold * FOLD + i / V_QUADS;
      let of_all = first_row + row;
      var whole = NONE;
      if (SINKS && split == 0u) {
        whole = max(sink_of(first_head + of_all % p.group) * LOG2_E, NONE);
      }
      let sink = whole;
      for (var other = 0u; other < SUBGROUPS; other++) {
        whole = max(whole, subgroup_most[row * SUBGROUPS + other]);
      }
      var whole_sum = 0.0;
      if (SINKS && split == 0u) {
        whole_sum = exp2(sink - whole);
      }
      var total = vec4<f32>(0.0);
      for (var other = 0u; other < SUBGROUPS; other++) {
        let by = exp2(subgroup_most[row * SUBGROUPS + other] - whole);
        whole_sum += subgroup_sum[row * SUBGROUPS + other] * by;
        total += partials[(i / V_QUADS * SUBGROUPS + other) * V_QUADS + i % V_QUADS] * by;
      }
      if (of_all < all_rows) {
        let dst_row = (batch * p.heads + first_head + of_all % p.group) * p.queries + of_all / p.group;
        store(dst_row, split, i % V_QUADS, total, whole * LN_2, whole_sum);
      }
    }
    workgroupBarrier();
  }
}
