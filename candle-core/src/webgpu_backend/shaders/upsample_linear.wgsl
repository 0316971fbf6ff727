// The mean of four elements: two rows and two columns of the image that begins at `start`, with the weights of the table.

fn between(first: src_t, second: src_t, e: vec4<u32>) -> src_t {
  return first * (src_t(1) - weight(e)) + second * weight(e);
}

fn mixed(start: u32, column: vec4<u32>) -> src_t {
  return between(src_at(start + column.x * p.src_col), src_at(start + column.y * p.src_col), column);
}

fn resampled(start: u32, row: vec4<u32>, column: vec4<u32>) -> src_t {
  return between(mixed(start + row.x * p.src_row, column), mixed(start + row.y * p.src_row, column), row);
}
