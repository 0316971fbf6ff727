// The rows are x + a second tensor, which are written to the first half of dst. An invocation reads only sums that it stored itself, as
// they were stored: rounded to dst's dtype.

fn row_start(row: u32) -> u32 { return x_offset(row); }
fn value(start: u32, second: u32, row: u32, i: u32) -> f32 { return dst_at(row * p.len + i); }
fn result_row(row: u32) -> u32 { return p.rows + row; }
fn first_value(row: u32, word: u32, start: u32, second: u32) -> array<dst_t, DST_LANES> {
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let i = word * DST_LANES + lane;
    lanes[lane] = x_at(start + i * p.x_step) + second_at(second, i);
  }
  dst_put(row * p.len / DST_LANES + word, lanes);
  return dst_rounded(lanes);
}
