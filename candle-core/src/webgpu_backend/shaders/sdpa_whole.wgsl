// A workgroup saw all keys of its rows: the sums, divided, are the result.

fn store(dst_row: u32, split: u32, quad: u32, value: vec4<f32>, most: f32, sum: f32) {
  var v = value / divisor(sum);
  for (var i = 0u; i < 4u; i += DST_LANES) {
    if (quad * 4u + i < V_DIM) {
      var lanes: array<dst_t, DST_LANES>;
      for (var lane = 0u; lane < DST_LANES; lane++) {
        lanes[lane] = v[i + lane];
      }
      dst_put((dst_row * V_DIM + quad * 4u + i) / DST_LANES, lanes);
    }
  }
}
