// A workgroup saw all keys: its sums, divided, are the result.

fn store(row: u32, place: u32, most: f32, sum: f32, local: u32) {
  if (local * DST_LANES < V_DIM) {
    for (var word = local; word < V_DIM / DST_LANES; word += WG) {
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        let i = word * DST_LANES + lane;
        lanes[lane] = sums[i / 4u][i % 4u] / divisor(sum);
      }
      dst_put(row * (V_DIM / DST_LANES) + word, lanes);
    }
  }
}
