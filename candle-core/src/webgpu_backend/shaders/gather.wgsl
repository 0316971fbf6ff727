// dst[i] = the element of src at index ids[i] along a dimension, 0 for a skipped index. src_offset returns the offset for index p.first,
// p.src_step is the stride.
//
// PART: src has the elements for p.count indexes from p.first on; elements selected by other indexes are unchanged.

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
