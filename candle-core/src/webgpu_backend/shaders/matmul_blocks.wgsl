// dst[row, col] = sum over k of lhs[row, k] * rhs[col, k], for blocks of rhs and ROWS rows of lhs in a workgroup. Neighbouring workgroups
// take other rows and the same columns.
//
// A subgroup makes COLS columns of the result from SUMS columns of rhs (with a gate twice as many), and its lanes share k: each takes
// pieces of PIECE elements, whose codes are one load of 16 bytes. The whole workgroup first brings lhs to workgroup memory in the form that
// its arithmetic wants, STRIP pieces of each row at a time. What a subgroup needs of rhs first is on its way before that, and later DEPTH
// pieces ahead: that keeps memory busy.
//
// Elements of a piece are handled by eights. RUN of them share a scale in rhs.
//
// The order in which a sum is made depends on k and WG alone: which rows are there beside it, and how many, must not change a result. So a
// strip that is not the last is whole turns of a subgroup over its pieces, and whole turns of the workgroup over its eights.
//
// Written by Rust, by format: RhsPiece, rhs_piece(e) loads it, rhs_eight(piece, i) has eight of its codes and rhs_scale(piece, run) the
// factor of their products and that of lhs alone. By arithmetic, matmul_blocks_*.wgsl: how lhs is kept, and dot_eight().

const EIGHTS = PIECE / 8u;
const RUNS = PIECE / RUN;
const RUN_EIGHTS = RUN / 8u;
const SUBGROUPS = WG / SUBGROUP;
// Words of the result that a subgroup makes in a row.
const WORDS = COLS / DST_LANES;
const ROW_WORDS = SUBGROUPS * WORDS;
const_assert WG % SUBGROUP == 0u;
const_assert SUBGROUP % RUN_EIGHTS == 0u;
const_assert COLS % DST_LANES == 0u;
const_assert WHOLE || (STRIP % SUBGROUP == 0u && STRIP * EIGHTS % WG == 0u);

struct Invocation {
  @builtin(subgroup_id) subgroup: u32,
  @builtin(subgroup_invocation_id) lane: u32,
}

// Neighbouring lanes read neighbouring elements of these.
var<workgroup> lhs_eights: array<LhsEight, ROWS * EIGHTS * STRIP>;
// What a code of lhs is worth, and the sum of the run.
var<workgroup> lhs_runs: array<vec2<f32>, ROWS * RUNS * STRIP>;
var<workgroup> totals: array<f32, SUBGROUPS * ROWS * SUMS>;
var<workgroup> squares: array<f32, SUBGROUPS * ROWS>;

fn total(i: u32) -> f32 {
  return totals[i];
}

// What a norm multiplies a row by, beside its weights.
fn norm_scale(row: u32) -> f32 {
  var sum = 0.0;
  for (var i = 0u; i < SUBGROUPS; i++) {
    sum += squares[i * ROWS + row];
  }
  return inverseSqrt(sum / f32(p.k) + p.eps);
}

// Brings pieces strip .. strip + pieces of the rows of lhs to workgroup memory, and adds up their squares for a norm.
fn stage(first_row: u32, strip: u32, pieces: u32, local: u32, sums: ptr<function, array<f32, ROWS>>) {
  let count = pieces * EIGHTS;
  for (var first = 0u; first < count; first += STAGES * WG) {
    // All loads come before their use.
    var words: array<LhsWord, STAGES * ROWS>;
    var weights: array<LhsWord, STAGES>;
    for (var s = 0u; s < STAGES; s++) {
      let at = strip * PIECE + 8u * min(first + s * WG + local, count - 1u);
      for (var row = 0u; row < ROWS; row++) {
        words[s * ROWS + row] = lhs_word(p.lhs_offset + min(first_row + row, p.m - 1u) * p.lhs_row + at);
      }
      if (NORMED) {
        weights[s] = alpha_word(p.alpha_offset + at);
      }
    }
    for (var s = 0u; s < STAGES; s++) {
      let i = first + s * WG + local;
      let inside = i < count;
      for (var row = 0u; row < ROWS; row++) {
        var eight = lhs_eight(words[s * ROWS + row]);
        if (NORMED) {
          let four = fma(eight[0], eight[0], eight[1] * eight[1]);
          (*sums)[row] += select(0.0, (four.x + four.y) + (four.z + four.w), inside);
          let weight = lhs_eight(weights[s]);
          eight[0] *= weight[0];
          eight[1] *= weight[1];
        }
        // The lanes of a run exchange what they have, so all of them come here.
        let found = staged(eight);
        if (inside) {
          let part = i % EIGHTS;
          lhs_eights[(row * EIGHTS + part) * STRIP + i / EIGHTS] = found.eight;
          if (part % RUN_EIGHTS == 0u) {
            lhs_runs[(row * RUNS + part / RUN_EIGHTS) * STRIP + i / EIGHTS] = found.run;
          }
        }
      }
    }
  }
}

// Adds the products of a piece of each column with the same place of each row.
fn add_products(pieces: array<RhsPiece, SUMS>, at: u32, sums: ptr<function, array<f32, ROWS * SUMS>>) {
  var columns = pieces;
  for (var run = 0u; run < RUNS; run++) {
    var codes: array<RhsEight, SUMS * RUN_EIGHTS>;
    var scales: array<vec2<f32>, SUMS>;
    for (var col = 0u; col < SUMS; col++) {
      scales[col] = rhs_scale(columns[col], run);
      for (var i = 0u; i < RUN_EIGHTS; i++) {
        codes[col * RUN_EIGHTS + i] = rhs_eight(columns[col], run * RUN_EIGHTS + i);
      }
    }
    for (var row = 0u; row < ROWS; row++) {
      var eights: array<LhsEight, RUN_EIGHTS>;
      for (var i = 0u; i < RUN_EIGHTS; i++) {
        eights[i] = lhs_eights[(row * EIGHTS + run * RUN_EIGHTS + i) * STRIP + at];
      }
      let lhs = lhs_runs[(row * RUNS + run) * STRIP + at];
      for (var col = 0u; col < SUMS; col++) {
        var number = Number();
        for (var i = 0u; i < RUN_EIGHTS; i++) {
          number = dot_eight(eights[i], codes[col * RUN_EIGHTS + i], number);
        }
        let before = fma(scales[col].y, lhs.y, (*sums)[row * SUMS + col]);
        (*sums)[row * SUMS + col] = fma(scales[col].x, f32(number) * lhs.x, before);
      }
    }
  }
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let row_groups = (p.m + ROWS - 1u) / ROWS;
  let group = flat(workgroup, workgroups, 0u, 1u);
  let first_row = group % row_groups * ROWS;
  let first_col = group / row_groups * (SUBGROUPS * COLS);
  if (first_col >= p.n) {
    return;
  }
  let lane = invocation.lane;
  let local = invocation.subgroup * SUBGROUP + lane;
  let col = first_col + invocation.subgroup * COLS;
  // Where the columns of rhs begin: those of the gate, then those of what it is multiplied with.
  var rhs: array<u32, SUMS>;
  for (var i = 0u; i < SUMS; i++) {
    rhs[i] = p.rhs_offset + ((i / COLS) * p.n + min(col + i % COLS, p.n - 1u)) * p.rhs_row;
  }
  var sums: array<f32, ROWS * SUMS>;
  var row_squares: array<f32, ROWS>;
  let pieces = p.k / PIECE;
  for (var strip = 0u; strip < pieces; strip += STRIP) {
    let end = min(pieces - strip, STRIP);
    var coming: array<array<RhsPiece, SUMS>, DEPTH>;
    for (var d = 0u; d < DEPTH; d++) {
      let at = lane + d * SUBGROUP;
      if (at < end) {
        for (var i = 0u; i < SUMS; i++) {
          coming[d][i] = rhs_piece(rhs[i] + (strip + at) * PIECE);
        }
      }
    }
    if (strip > 0u) {
      workgroupBarrier();
    }
    stage(first_row, strip, end, local, &row_squares);
    workgroupBarrier();
    for (var first = lane; first < end; first += DEPTH * SUBGROUP) {
      for (var d = 0u; d < DEPTH; d++) {
        let at = first + d * SUBGROUP;
        if (at < end) {
          let now = coming[d];
          let next = at + DEPTH * SUBGROUP;
          if (next < end) {
            for (var i = 0u; i < SUMS; i++) {
              coming[d][i] = rhs_piece(rhs[i] + (strip + next) * PIECE);
            }
          }
          add_products(now, at, &sums);
        }
      }
    }
  }
  for (var i = 0u; i < ROWS * SUMS; i++) {
    let sum = subgroupAdd(sums[i]);
    if (lane == 0u) {
      totals[invocation.subgroup * ROWS * SUMS + i] = sum;
    }
  }
  if (NORMED) {
    for (var row = 0u; row < ROWS; row++) {
      let sum = subgroupAdd(row_squares[row]);
      if (lane == 0u) {
        squares[invocation.subgroup * ROWS + row] = sum;
      }
    }
  }
  workgroupBarrier();
  for (var i = local; i < ROWS * ROW_WORDS; i += WG) {
    let row = i / ROW_WORDS;
    let dst_row = first_row + row;
    let subgroup = i % ROW_WORDS / WORDS;
    let first = i % WORDS * DST_LANES;
    let at = first_col + subgroup * COLS + first;
    if (dst_row < p.m && at < p.n) {
      var lanes: array<dst_t, DST_LANES>;
      for (var j = 0u; j < DST_LANES; j++) {
        lanes[j] = finish(dst_row, at + j, value(row, (subgroup * ROWS + row) * SUMS + first + j, at + j));
      }
      dst_put((dst_row * p.dst_row + p.dst_first + at) / DST_LANES, lanes);
    }
  }
}
