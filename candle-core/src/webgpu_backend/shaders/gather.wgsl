// dst[i] = the element of src that ids[i] chooses along a dimension, 0 for a skipped index. src_offset gives the place for
// index p.first, p.src_step the distance to the next.
//
// PART: src has the elements for p.count indexes from p.first on; what others choose is left as it is.

fn element_at(i: u32) -> dst_t {
  let id = id_at(ids_offset(i));
  if (id == NOTHING) {
    return dst_t();
  }
  let place = id - p.first;
  if (PART && place >= p.count) {
    return dst_at(i);
  }
  return src_at(src_offset(i) + place * p.src_step);
}
