// The second tensor: the offset of a row of it, and its elements.

fn second_start(row: u32) -> u32 {
  return beside_offset(row);
}

fn second_at(second: u32, i: u32) -> f32 {
  return beside_at(second + i * p.beside_step);
}
