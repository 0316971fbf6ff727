// dst[dst_offset + i] = f(src[i]) for i < len; an invocation writes one word of dst.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let first = p.dst_offset / DST_LANES;
  let word = first + flat(workgroup, workgroups, local, WG);
  if (word * DST_LANES >= p.dst_offset + p.len) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let at = word * DST_LANES + lane;
    if (at >= p.dst_offset && at < p.dst_offset + p.len) {
      lanes[lane] = f(src_at(src_offset(at - p.dst_offset)));
    } else if (KEEP) {
      lanes[lane] = dst_at(at);
    }
  }
  dst_put(word, lanes);
}
