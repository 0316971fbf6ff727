// dst[i] = the element of src that ids[i] chooses along a dimension, 0 for a skipped index; an invocation writes one word
// of dst. src_offset gives the place for index p.first, p.src_step the distance to the next.
//
// PART: src has the elements for p.count indexes from p.first on; what others choose is left as it is.

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
      let id = id_at(ids_offset(i));
      if (id != NOTHING) {
        let place = id - p.first;
        if (PART && place >= p.count) {
          lanes[lane] = dst_at(i);
        } else {
          lanes[lane] = src_at(src_offset(i) + place * p.src_step);
        }
      }
    }
  }
  dst_put(word, lanes);
}
