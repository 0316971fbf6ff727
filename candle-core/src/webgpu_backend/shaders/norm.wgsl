// dst = (v - mean) / sqrt(mean((v - mean)^2) + eps) * alpha + bias for each row of v; without CENTRED the mean is taken as 0
// (RMS norm). A workgroup takes a row, an invocation every WG-th word of it.

@compute @workgroup_size(WG)
fn main(invocation: Invocation) {
  let row = flat(invocation.workgroup, invocation.workgroups, 0u, 1u);
  if (row >= p.rows) {
    return;
  }
  let start = row_start(row);
  let second = second_start(row);
  let words = p.len / DST_LANES;
  var mean = 0.0;
  for (var word = invocation.local; word < words; word += WG) {
    store_sum(row, word, start, second);
  }
  if (CENTRED) {
    var sum = 0.0;
    for (var word = invocation.local; word < words; word += WG) {
      for (var lane = 0u; lane < DST_LANES; lane++) {
        sum += value(start, second, row, word * DST_LANES + lane);
      }
    }
    reduce(array<f32, COUNT>(sum), invocation);
    mean = total(0u) / f32(p.len);
    workgroupBarrier();
  }
  var squares = 0.0;
  for (var word = invocation.local; word < words; word += WG) {
    for (var lane = 0u; lane < DST_LANES; lane++) {
      let v = value(start, second, row, word * DST_LANES + lane) - mean;
      squares += v * v;
    }
  }
  reduce(array<f32, COUNT>(squares), invocation);
  let scale = inverseSqrt(total(0u) / f32(p.len) + p.eps);
  for (var word = invocation.local; word < words; word += WG) {
    var lanes: array<dst_t, DST_LANES>;
    for (var lane = 0u; lane < DST_LANES; lane++) {
      let i = word * DST_LANES + lane;
      let v = value(start, second, row, i) - mean;
      lanes[lane] = v * scale * alpha_at(p.alpha_offset + i * p.alpha_step) + bias(i);
    }
    dst_put(row * words + word, lanes);
  }
}
