// dst[row, col] = sum over k of lhs[row, k] * rhs[col, k], for all ROWS rows and COLS columns in one workgroup, whose
// invocations share k. sums() and value() are written by Rust; reduce() and total() come from sum_*.wgsl.

const WORDS = COLS / DST_LANES;
const_assert COLS % DST_LANES == 0u;
const_assert ROWS * WORDS <= WG;

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
