// dst = value() wherever the layout covers it; other elements stay.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let i = flat(workgroup, workgroups, local, WG);
  var lanes: array<dst_t, DST_LANES>;
  if (BY_ELEMENT) {
    if (i < p.len) {
      lanes[0] = value();
      dst_put(dst_offset(i), lanes);
    }
    return;
  }
  if (i >= p.words) {
    return;
  }
  let word = p.dst_offset / DST_LANES + i;
  var any = false;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let at = word * DST_LANES + lane;
    if (covers(at)) {
      lanes[lane] = value();
      any = true;
    } else {
      lanes[lane] = dst_at(at);
    }
  }
  if (any) {
    dst_put(word, lanes);
  }
}
