// dst[row, col] = sum over k of lhs[row, k] * rhs[col, k], for all ROWS rows and COLS columns in one workgroup, whose invocations share k.
// Rust generates value(); reduce() and total() come from sum_*.wgsl. With a gate there are SUMS = 2 COLS sums for a row: COLS of the gate,
// then COLS of the up projection. With a norm, lhs is multiplied by its weights, and the sums of its squares come last. Loops to ROWS,
// SUMS, TURNS and PASSES are unrolled (unroll.rs): all loads of a round precede their use, so that they are in flight at the same time, and
// sums stay in registers.

const WORDS = COLS / DST_LANES;
const_assert COLS % DST_LANES == 0u;
const_assert ROWS * WORDS <= WG;

fn sums(local: u32, lhs_base: u32, rhs_base: u32, col: u32) -> array<f32, COUNT> {
  // lhs may have any stride over k if single elements are read; words are contiguous.
  let lhs_col = select(1u, p.lhs_col, GROUP == 1u);
  var lhs_first: array<u32, ROWS>;
  for (var i = 0u; i < ROWS; i++) {
    lhs_first[i] = lhs_base + i * p.lhs_row;
  }
  var rhs_first: array<u32, SUMS>;
  for (var j = 0u; j < SUMS; j++) {
    rhs_first[j] = rhs_base + (j / COLS * p.n + min(col + j % COLS, p.n - 1u)) * p.rhs_row;
  }
  var own: array<Sum, ROWS * SUMS>;
  var squares: array<Sum, ROWS>;
  let step = WG * GROUP;
  var at = local * GROUP;
  for (var pass = 0u; pass < PASSES; pass++) {
    // The remainder of the TURNS-way unrolled loop runs one iteration at a time.
    let turns = select(TURNS, 1u, pass == 1u);
    for (; at + (turns - 1u) * step < p.k; at += turns * step) {
      var rhs_words: array<RhsWord, TURNS * SUMS>;
      var lhs_words: array<LhsWord, TURNS * ROWS>;
      var weights: array<LhsWord, TURNS>;
      for (var t = 0u; t < TURNS; t++) {
        if (t < turns) {
          for (var j = 0u; j < SUMS; j++) {
            rhs_words[t * SUMS + j] = rhs_word(rhs_first[j] + at + t * step);
          }
          for (var i = 0u; i < ROWS; i++) {
            lhs_words[t * ROWS + i] = lhs_word(lhs_first[i] + (at + t * step) * lhs_col);
          }
          if (NORMED) {
            weights[t] = alpha_word(p.alpha_offset + at + t * step);
          }
        }
      }
      for (var t = 0u; t < TURNS; t++) {
        if (t < turns) {
          var y: array<RhsValues, SUMS>;
          for (var j = 0u; j < SUMS; j++) {
            y[j] = rhs_values(rhs_words[t * SUMS + j]);
          }
          for (var i = 0u; i < ROWS; i++) {
            var x: LhsValues;
            if (NORMED) {
              squares[i] = fma_squares(lhs_words[t * ROWS + i], squares[i]);
              x = normed_values(lhs_words[t * ROWS + i], weights[t]);
            } else {
              x = lhs_values(lhs_words[t * ROWS + i]);
            }
            for (var j = 0u; j < SUMS; j++) {
              own[i * SUMS + j] = fma_values(x, y[j], own[i * SUMS + j]);
            }
          }
        }
      }
    }
  }
  var all: array<f32, COUNT>;
  for (var i = 0u; i < ROWS; i++) {
    for (var j = 0u; j < SUMS; j++) {
      all[i * SUMS + j] = sum_of(own[i * SUMS + j]);
    }
    if (NORMED) {
      // Without a norm the index is out of bounds; some compilers reject that even in dead code.
      all[min(ROWS * SUMS + i, COUNT - 1u)] = sum_of(squares[i]);
    }
  }
  return all;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let groups = (p.n + COLS - 1u) / COLS;
  let group = flat(workgroup, workgroups, 0u, 1u);
  let batch = group / groups;
  if (batch >= p.batch) {
    return;
  }
  let col = (group % groups) * COLS;
  reduce(sums(invocation.local, lhs_offset(batch), rhs_offset(batch), col), invocation);
  let row = invocation.local / WORDS;
  let first = invocation.local % WORDS * DST_LANES;
  if (row < ROWS && col + first < p.n) {
    let dst_row = batch * p.m + row;
    var lanes: array<dst_t, DST_LANES>;
    for (var lane = 0u; lane < DST_LANES; lane++) {
      lanes[lane] = finish(dst_row, col + first + lane, value(row, row * SUMS + first + lane, col + first + lane));
    }
    dst_put((dst_row * p.dst_row + p.dst_first + col + first) / DST_LANES, lanes);
  }
}
