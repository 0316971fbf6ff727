// A workgroup saw some of the keys: its sums wait for the others, with their maximum and the sum of weights after them.

fn store(row: u32, place: u32, most: f32, sum: f32, local: u32) {
  let start = place * (V_DIM + 2u);
  for (var i = local; i < V_DIM; i += WG) {
    parts_out[start + i] = sums[i / 4u][i % 4u];
  }
  if (local == 0u) {
    parts_out[start + V_DIM] = most;
    parts_out[start + V_DIM + 1u] = sum;
  }
}
