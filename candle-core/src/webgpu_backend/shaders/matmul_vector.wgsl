// dst[row, col] = sum over k of lhs[row, k] * rhs[col, k], for all ROWS rows and COLS columns in one workgroup, whose
// invocations share k. value() is written by Rust; reduce() and total() come from sum_*.wgsl. With a gate there are SUMS = 2 COLS sums for
// a row: past COLS columns follow those that the gate is multiplied with. With a norm, lhs is multiplied by its weights, and the sums of
// its squares come last. `each` repeats lines (unroll.rs): all loads of a round come before their use, so that they are on their way
// together, and sums stay in registers.

const WORDS = COLS / DST_LANES;
const_assert COLS % DST_LANES == 0u;
const_assert ROWS * WORDS <= WG;

fn sums(local: u32, lhs_base: u32, rhs_base: u32, col: u32) -> array<f32, COUNT> {
  // lhs may have any step over k where single elements are read; words are contiguous.
  let lhs_col = select(1u, p.lhs_col, GROUP == 1u);
  each i in ROWS: let lhs#i = lhs_base + #iu * p.lhs_row;
  each j in SUMS: let rhs#j = rhs_base + (#ju / COLS * p.n + min(col + #ju % COLS, p.n - 1u)) * p.rhs_row;
  each i in ROWS, j in SUMS: var s#i_#j = Sum();
  each i in NORMED_ROWS: var squares#i = Sum();
  let step = WG * GROUP;
  var at = local * GROUP;
  // Rounds of several turns, then the turns that are left.
  each round in LOOPS {
    for (; at + (TURNS_#round - 1u) * step < p.k; at += TURNS_#round * step) {
      each t in TURNS_#round {
        each j in SUMS: let b#t_#j = rhs_word(rhs#j + at + #tu * step);
        each i in ROWS: let a#t_#i = lhs_word(lhs#i + (at + #tu * step) * lhs_col);
        each n in NORMED: let g#t = alpha_word(p.alpha_offset + at + #tu * step);
      }
      each t in TURNS_#round {
        each j in SUMS: let y#t_#j = rhs_values(b#t_#j);
        each i in ROWS {
          each n in NORMED: squares#i = fma_squares(a#t_#i, squares#i);
          each n in NORMED: let x#t_#i = normed_values(a#t_#i, g#t);
          each n in PLAIN: let x#t_#i = lhs_values(a#t_#i);
          each j in SUMS: s#i_#j = fma_values(x#t_#i, y#t_#j, s#i_#j);
        }
      }
    }
  }
  return array<f32, COUNT>(
    each i in ROWS, j in SUMS: sum_of(s#i_#j),
    each i in NORMED_ROWS: sum_of(squares#i),
  );
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
