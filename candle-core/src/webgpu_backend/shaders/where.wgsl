// dst[i] = lhs[i] where cond[i] holds, else rhs[i]; an invocation writes one word of dst.

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
      if (holds(cond_at(cond_offset(i)))) {
        lanes[lane] = lhs_at(lhs_offset(i));
      } else {
        lanes[lane] = rhs_at(rhs_offset(i));
      }
    }
  }
  dst_put(word, lanes);
}
