// dst[i] = f(lhs[i], rhs[i]) for i < len; an invocation writes one word of dst.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = flat(workgroup, workgroups, local, WG);
  if (word * DST_LANES >= p.len) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let i = word * DST_LANES + lane;
    if (i < p.len) {
      lanes[lane] = f(lhs_at(lhs_offset(i)), rhs_at(rhs_offset(i)));
    }
  }
  dst_put(word, lanes);
}
