// d1 rows of d2 elements from src to dst; the rows of both have separate strides. An invocation writes one word of dst.
//
// WHOLE: the rows of dst are whole words, so an invocation writes a word of a row. Otherwise it writes a word of the span from the first
// row's start to the last one's end, and preserves the lanes between rows.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let i = flat(workgroup, workgroups, local, WG);
  if (i >= p.words) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  if (WHOLE) {
    let first = i * DST_LANES;
    let row = first / p.d2;
    let column = first % p.d2;
    for (var lane = 0u; lane < DST_LANES; lane++) {
      lanes[lane] = src_at(p.src_offset + row * p.src_stride + column + lane);
    }
    dst_put((p.dst_offset + row * p.dst_stride + column) / DST_LANES, lanes);
    return;
  }
  let word = p.dst_offset / DST_LANES + i;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let at = word * DST_LANES + lane;
    lanes[lane] = dst_at(at);
    if (at >= p.dst_offset) {
      let row = min((at - p.dst_offset) / p.dst_stride, p.d1 - 1u);
      let column = at - p.dst_offset - row * p.dst_stride;
      if (column < p.d2) {
        lanes[lane] = src_at(p.src_offset + row * p.src_stride + column);
      }
    }
  }
  dst_put(word, lanes);
}
