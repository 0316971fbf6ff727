// dst = the elements of rows of blocks as floats, times a power of two. An invocation takes eight elements. source(e) is the place of dst's element
// e in the blocks, or NOTHING.

const NOTHING_HERE = 0xffffffffu;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let first = flat(workgroup, workgroups, local, WG) * 8u;
  if (first >= p.len) {
    return;
  }
  let at = source(first);
  if (at == NOTHING_HERE) {
    return;
  }
  var values = rhs_elements(rhs_word(at));
  for (var i = 0u; i < 8u; i += DST_LANES) {
    var lanes: array<dst_t, DST_LANES>;
    for (var lane = 0u; lane < DST_LANES; lane++) {
      lanes[lane] = values[(i + lane) / 4u][(i + lane) % 4u] * p.factor;
    }
    dst_put((first + i) / DST_LANES, lanes);
  }
}
