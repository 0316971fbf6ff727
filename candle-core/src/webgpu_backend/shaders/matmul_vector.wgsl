// dst[row, col] = sum over k of lhs[row, k] * rhs[col, k], for ROWS rows and COLS columns in a team (sum_*.wgsl), whose members share
// k. sums() and value() are written by Rust.

const WORDS = COLS / DST_LANES;
const_assert COLS % DST_LANES == 0u;

// Where a team's column `i` is, from its first one on. The teams of a workgroup take turns by words of dst: where rhs has its columns
// side by side, they read what is side by side.
fn column(i: u32) -> u32 {
  return i / DST_LANES * (TEAMS * DST_LANES) + i % DST_LANES;
}

@compute @workgroup_size(WG * TEAMS)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let strips = (p.n + COLS * TEAMS - 1u) / (COLS * TEAMS);
  let blocks = (p.m + ROWS - 1u) / ROWS;
  let group = flat(workgroup, workgroups, 0u, 1u);
  let batch = group / (strips * blocks);
  if (batch >= p.batch) {
    return;
  }
  // Blocks of rows come first: they read the same columns of rhs, while those are in the cache.
  let row = group % blocks * ROWS;
  let col = group / blocks % strips * (COLS * TEAMS) + team_of(invocation) * DST_LANES;
  reduce(sums(member(invocation), lhs_offset(batch), rhs_offset(batch), row, col), invocation);
  for (var word = member(invocation); word < ROWS * WORDS; word += WG) {
    let at = word / WORDS;
    let first = word % WORDS * DST_LANES;
    let dst_col = col + column(first);
    if (row + at < p.m && dst_col < p.n) {
      let dst_row = batch * p.m + row + at;
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        lanes[lane] = finish(dst_row, dst_col + lane, value(at, at * SUMS + first + lane));
      }
      dst_put((dst_row * p.dst_row + p.dst_first + dst_col) / DST_LANES, lanes);
    }
  }
}
