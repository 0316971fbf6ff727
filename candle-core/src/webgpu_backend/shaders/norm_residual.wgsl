// The rows are x + residual, which is stored too. An invocation reads only sums that it stored itself.

fn row_start(row: u32) -> u32 { return x_offset(row); }
fn second_start(row: u32) -> u32 { return residual_offset(row); }
fn store_sum(row: u32, word: u32, start: u32, second: u32) {
  var lanes: array<sum_t, SUM_LANES>;
  for (var lane = 0u; lane < SUM_LANES; lane++) {
    let i = word * SUM_LANES + lane;
    lanes[lane] = x_at(start + i * p.x_step) + residual_at(second + i * p.residual_step);
  }
  sum_put(row * p.len / SUM_LANES + word, lanes);
}
fn value(start: u32, second: u32, row: u32, i: u32) -> f32 { return sum_at(row * p.len + i); }
