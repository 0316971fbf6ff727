// The rows are those of x.

fn row_start(row: u32) -> u32 { return x_offset(row); }
fn value(start: u32, second: u32, row: u32, i: u32) -> f32 { return x_at(start + i * p.x_step); }
fn result_row(row: u32) -> u32 { return row; }
fn first_value(row: u32, word: u32, start: u32, second: u32) -> array<dst_t, DST_LANES> {
  return load(row, word, start, second);
}
