// Joins the parts of each row: every part is scaled from its own maximum to the row's. An invocation writes one word of dst.

const PART = V_DIM + 2u;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = flat(workgroup, workgroups, local, WG);
  let row = word * DST_LANES / V_DIM;
  if (row >= p.rows) {
    return;
  }
  let first = row * p.splits * PART;
  var most = parts_in[first + V_DIM];
  for (var split = 1u; split < p.splits; split++) {
    most = max(most, parts_in[first + split * PART + V_DIM]);
  }
  var sum = 0.0;
  var values: array<f32, DST_LANES>;
  for (var split = 0u; split < p.splits; split++) {
    let start = first + split * PART;
    let scale = exp(parts_in[start + V_DIM] - most);
    sum = fma(parts_in[start + V_DIM + 1u], scale, sum);
    for (var lane = 0u; lane < DST_LANES; lane++) {
      values[lane] += parts_in[start + word * DST_LANES % V_DIM + lane] * scale;
    }
  }
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    lanes[lane] = values[lane] / divisor(sum);
  }
  dst_put(word, lanes);
}
