// Attention of few queries, without subgroups: of ROWS rows that share keys and values, so that these are read once for all of them, to
// `chunk` keys in a workgroup. A row is a query of one of `group` heads, with the heads of a query adjacent. The result of a row does not
// depend on the number of rows, nor on the lengths of others, in a single bit: sequences are the same alone and in a batch. TURN keys per
// iteration:
// - SHARERS invocations share a key for its scores with all rows; each has every SHARERS-th vector of it, of PIECE elements in 16 bytes.
// - V_PIECES invocations, a crew, share CREW_KEYS values; each computes a vector of the weighted sums, relative to the crew's maximum
//   (Milakov and Gimelshein, arXiv 1805.02867), which each of them finds for itself. So no maximum is waited for before the end, where
//   crews join.
// All loads of an iteration are in flight before the first is waited for. Rust unrolls loops to constants (`unrolled`), and arrays become
// variables.

// The maximum before any score: below all scores, and far enough above LEAST that a hidden key has no weight.
const NONE = -0x1p+100f;
// Weights are powers of 2.
const LOG2_E = 1.44269504f;
const LN_2 = 0.693147181f;
const QUADS = HEAD_DIM / 4u;
const V_QUADS = V_DIM / 4u;
const PIECES = HEAD_DIM / PIECE;
const V_PIECES = V_DIM / PIECE;
const TEAMS = WG / SHARERS;
const TURN = TEAMS * OWN_KEYS;
const CREWS = WG / V_PIECES;
// Whether the crews' keys are exactly those of an iteration, and every invocation is in a crew.
const WHOLE = CREWS * CREW_KEYS == TURN && CREWS * V_PIECES == WG;
const SUMS = OWN_KEYS * ROWS;
const QUERY_LEN = STEPS * PIECE_QUADS * SHARERS;
const_assert PIECE_QUADS * FOUR == PIECE && HEAD_DIM % PIECE == 0u && V_DIM % PIECE == 0u && V_QUADS <= WG && ROWS <= WG;
const_assert STEPS * SHARERS >= PIECES && CREWS * CREW_KEYS >= TURN;
const_assert PARTIALS >= FOLD * PIECE * WG && PARTIALS >= SUMS * WG;
const_assert OUTPUTS * SHARERS >= SUMS && FOLDS * FOLD >= ROWS;

// The keys that a row sees, and its bias by distance.
struct Own {
  first: u32,
  end: u32,
  position: i32,
  slope: f32,
}

// Queries, scaled; sharers of a key read neighbours.
var<workgroup> query: array<vec4<f32>, ROWS * QUERY_LEN>;
var<workgroup> own_rows: array<Own, ROWS>;
// Of this iteration and of the previous one, which slower invocations still read.
var<workgroup> scores: array<f32, 2u * ROWS * TURN>;
var<workgroup> crew_most: array<f32, ROWS * CREWS>;
var<workgroup> crew_sum: array<f32, ROWS * CREWS>;
// The maximum and the sum of weights of each row.
var<workgroup> joined: array<vec2<f32>, ROWS>;
// Sums before they are added: over sharers, and at the end over crews.
var<workgroup> partials: array<f32, PARTIALS>;

// Quad i of a vector of keys or values.
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

fn add_product(a: vec4<f32>, b: vec4<f32>, sum: f32) -> f32 {
  return fma(a.w, b.w, fma(a.z, b.z, fma(a.y, b.y, fma(a.x, b.x, sum))));
}

// A row's score of key number `at` of an iteration's keys, which start at `start`.
fn score_of(start: u32, row: u32, at: u32) -> f32 {
  if (WHOLE) {
    return scores[start + row * TURN + at];
  }
  return select(LEAST, scores[start + row * TURN + min(at, TURN - 1u)], at < TURN);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let all_rows = p.group * p.queries;
  let kv_heads = p.heads / p.group;
  let blocks = (all_rows + ROWS - 1u) / ROWS;
  let place = flat(workgroup, workgroups, 0u, 1u);
  let batch = place / (p.splits * blocks * kv_heads);
  if (batch >= p.batch) {
    return;
  }
  let kv_head = place / (p.splits * blocks) % kv_heads;
  let first_row = place / p.splits % blocks * ROWS;
  let split = place % p.splits;
  let first_head = kv_head * p.group;
  let scale = select(p.scale * LOG2_E, p.scale / p.softcap, SOFTCAP);
  for (var i = local; i < ROWS * QUERY_LEN; i += WG) {
    let row = first_row + i / QUERY_LEN;
    let piece = i / (PIECE_QUADS * SHARERS) % STEPS * SHARERS + i % SHARERS;
    let quad = piece * PIECE_QUADS + i / SHARERS % PIECE_QUADS;
    var value = vec4<f32>(0.0);
    if (row < all_rows && quad < QUADS) {
      let start = p.q_offset + batch * p.q_batch + (first_head + row % p.group) * p.q_head + row / p.group * p.q_seq;
      value = q_quad(start, quad) * scale;
    }
    query[i] = value;
  }
  if (local < ROWS) {
    let row = first_row + local;
    let at = row / p.group;
    var own = Own(0u, 0u, 0, 0.0);
    if (row < all_rows) {
      own.end = p.keys;
      if (CAUSAL) {
        own.end = p.keys - p.queries + at + 1u;
      }
      if (RANGED) {
        own.first = seen_begin(batch, at);
        own.end = seen_end(batch, at);
      }
      if (SLOPES) {
        own.position = position_of(batch, at);
        own.slope = slope_of(first_head + row % p.group) * LOG2_E;
      }
    }
    own_rows[local] = own;
  }
  let last_at = (min(first_row + ROWS, all_rows) - 1u) / p.group;
  var seen = p.keys;
  if (CAUSAL) {
    seen = p.keys - p.queries + last_at + 1u;
  }
  var first = split * p.chunk;
  var last = min(first + p.chunk, seen);
  if (RANGED) {
    // Parts of the keys that these rows see together: positions grow with rows.
    seen = seen_end(batch, last_at);
    first = min(seen_begin(batch, first_row / p.group), seen) + split * p.chunk;
    last = min(first + p.chunk, seen);
  }
  let part = local % SHARERS;
  let team = local / SHARERS;
  let crew = local / V_PIECES;
  let piece = local % V_PIECES;
  // In units of vectors.
  let k_start = (p.k_offset + batch * p.k_batch + kv_head * p.k_head) / PIECE;
  let v_start = (p.v_offset + batch * p.v_batch + kv_head * p.v_head) / PIECE + piece;
  let k_step = p.k_seq / PIECE;
  let v_step = p.v_seq / PIECE;
  // With space for the last fold.
  var most: array<f32, FOLDS * FOLD>;
  var sum: array<f32, ROWS>;
  var value: array<vec4<f32>, FOLDS * FOLD * PIECE_QUADS>;
  for (var row = 0u; row < ROWS; row++) {
    most[row] = NONE;
  }
  workgroupBarrier();
  var flip = 0u;
  for (var turn = first; turn < last; turn += TURN) {
    var keys: array<vec4<u32>, OWN_KEYS * STEPS>;
    for (var key = 0u; key < OWN_KEYS; key++) {
      let start = k_start + key_place(batch, min(turn + key * TEAMS + team, last - 1u)) * k_step;
      for (var step = 0u; step < STEPS; step++) {
        keys[key * STEPS + step] = k[start + min(step * SHARERS + part, PIECES - 1u)];
      }
    }
    var values: array<vec4<u32>, CREW_KEYS>;
    for (var i = 0u; i < CREW_KEYS; i++) {
      values[i] = v[v_start + key_place(batch, min(turn + crew * CREW_KEYS + i, last - 1u)) * v_step];
    }
    var sums: array<f32, OUTPUTS * SHARERS>;
    for (var step = 0u; step < STEPS; step++) {
      for (var quad = 0u; quad < PIECE_QUADS; quad++) {
        var key_quads: array<vec4<f32>, OWN_KEYS>;
        for (var key = 0u; key < OWN_KEYS; key++) {
          key_quads[key] = quad_of(keys[key * STEPS + step], quad);
        }
        for (var row = 0u; row < ROWS; row++) {
          let q = query[((row * STEPS + step) * PIECE_QUADS + quad) * SHARERS + part];
          for (var key = 0u; key < OWN_KEYS; key++) {
            sums[key * ROWS + row] = add_product(q, key_quads[key], sums[key * ROWS + row]);
          }
        }
      }
    }
    // Sums over sharers, of which each keeps some.
    var totals: array<f32, OUTPUTS>;
    for (var output = 0u; output < OUTPUTS; output++) {
      for (var sharer = 0u; sharer < SHARERS; sharer++) {
        if (output * SHARERS + sharer < SUMS) {
          partials[(output * SHARERS + sharer) * WG + local] = sums[output * SHARERS + sharer];
        }
      }
    }
    workgroupBarrier();
    for (var output = 0u; output < OUTPUTS; output++) {
      let start = min(output * SHARERS + part, SUMS - 1u) * WG + team * SHARERS;
      for (var sharer = 0u; sharer < SHARERS; sharer++) {
        totals[output] += partials[start + sharer];
      }
    }
    let first_score = flip * ROWS * TURN;
    for (var output = 0u; output < OUTPUTS; output++) {
      let which = output * SHARERS + part;
      let row = which % ROWS;
      let at = which / ROWS * TEAMS + team;
      if (which < SUMS) {
        let own = own_rows[row];
        let key = turn + at;
        var score = totals[output];
        if (SOFTCAP) {
          score = f_tanh(score) * (p.softcap * LOG2_E);
        }
        if (SLOPES) {
          score -= own.slope * f32(abs(i32(key) - own.position));
        }
        let hidden = key < own.first || key >= min(own.end, last);
        scores[first_score + row * TURN + at] = select(score, LEAST, hidden);
      }
    }
    workgroupBarrier();
    let own_score = first_score + select(0u, crew * CREW_KEYS, WHOLE);
    let own_at = select(crew * CREW_KEYS, 0u, WHOLE);
    for (var row = 0u; row < ROWS; row++) {
      var higher = most[row];
      for (var i = 0u; i < CREW_KEYS; i++) {
        higher = max(higher, score_of(own_score, row, own_at + i));
      }
      let correction = exp2(most[row] - higher);
      most[row] = higher;
      sum[row] *= correction;
      for (var quad = 0u; quad < PIECE_QUADS; quad++) {
        value[row * PIECE_QUADS + quad] *= correction;
      }
    }
    for (var i = 0u; i < CREW_KEYS; i++) {
      var quads: array<vec4<f32>, PIECE_QUADS>;
      for (var quad = 0u; quad < PIECE_QUADS; quad++) {
        quads[quad] = quad_of(values[i], quad);
      }
      for (var row = 0u; row < ROWS; row++) {
        let weight = exp2(score_of(own_score, row, own_at + i) - most[row]);
        sum[row] += weight;
        for (var quad = 0u; quad < PIECE_QUADS; quad++) {
          value[row * PIECE_QUADS + quad] = fma(vec4<f32>(weight), quads[quad], value[row * PIECE_QUADS + quad]);
        }
      }
    }
    flip = 1u - flip;
  }
  if (crew < CREWS && piece == 0u) {
    for (var row = 0u; row < ROWS; row++) {
      crew_most[row * CREWS + crew] = most[row];
      crew_sum[row * CREWS + crew] = sum[row];
    }
  }
  workgroupBarrier();
  if (local < ROWS) {
    var whole = NONE;
    if (SINKS && split == 0u) {
      whole = max(sink_of(first_head + (first_row + local) % p.group) * LOG2_E, NONE);
    }
    let sink = whole;
    for (var other = 0u; other < CREWS; other++) {
      whole = max(whole, crew_most[local * CREWS + other]);
    }
    var whole_sum = 0.0;
    if (SINKS && split == 0u) {
      whole_sum = exp2(sink - whole);
    }
    for (var other = 0u; other < CREWS; other++) {
      whole_sum += crew_sum[local * CREWS + other] * exp2(crew_most[local * CREWS + other] - whole);
    }
    joined[local] = vec2<f32>(whole, whole_sum);
  }
  workgroupBarrier();
  for (var fold = 0u; fold < FOLDS; fold++) {
    for (var i = 0u; i < FOLD; i++) {
      if (fold * FOLD + i < ROWS) {
        let correction = exp2(most[fold * FOLD + i] - joined[min(fold * FOLD + i, ROWS - 1u)].x);
        for (var quad = 0u; quad < PIECE_QUADS; quad++) {
          let corrected = value[(fold * FOLD + i) * PIECE_QUADS + quad] * correction;
          for (var c = 0u; c < FOUR; c++) {
            partials[((i * PIECE_QUADS + quad) * FOUR + c) * WG + local] = corrected[c];
          }
        }
      }
    }
    workgroupBarrier();
    for (var i = local; i < min(FOLD, ROWS - fold * FOLD) * V_QUADS; i += WG) {
      let row = fold * FOLD + i / V_QUADS;
      let quad = i % V_QUADS;
      var total = vec4<f32>(0.0);
      let start = (i / V_QUADS * PIECE_QUADS + quad % PIECE_QUADS) * FOUR * WG + quad / PIECE_QUADS;
      for (var other = 0u; other < CREWS; other++) {
        for (var c = 0u; c < FOUR; c++) {
          total[c] += partials[start + c * WG + other * V_PIECES];
        }
      }
      let of_all = first_row + row;
      if (of_all < all_rows) {
        let dst_row = (batch * p.heads + first_head + of_all % p.group) * p.queries + of_all / p.group;
        store(dst_row, split, quad, total, joined[row].x * LN_2, joined[row].y);
      }
    }
    workgroupBarrier();
  }
}
