// A workgroup saw some of the keys: its sums are stored for the join, followed by their maximum and the sum of weights.

fn store(dst_row: u32, split: u32, quad: u32, value: vec4<f32>, most: f32, sum: f32) {
  let start = (dst_row * p.splits + split) * (V_DIM + 2u);
  var v = value;
  for (var i = 0u; i < min(4u, V_DIM - quad * 4u); i++) {
    parts_out[start + quad * 4u + i] = v[i];
  }
  if (quad == 0u) {
    parts_out[start + V_DIM] = most;
    parts_out[start + V_DIM + 1u] = sum;
  }
}
