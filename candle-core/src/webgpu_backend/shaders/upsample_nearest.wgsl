// The element at a row and a column of the table, in the image that begins at `start`.
fn resampled(start: u32, row: vec4<u32>, column: vec4<u32>) -> src_t {
  return src_at(start + row.x * p.src_row + column.x * p.src_col);
}
