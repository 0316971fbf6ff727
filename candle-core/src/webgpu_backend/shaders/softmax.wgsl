// dst = softmax(scale * x) over each row of x. With SOFTCAP, cap * tanh(scale * x / cap) instead of scale * x. With CAUSAL a row sees only
// its first elements: row i of `queries` sees i + p.seen of them, the rest become 0.

const LEAST = -0x1.fffffep+127f;

fn score(start: u32, i: u32) -> f32 {
  let x = x_at(start + i * p.x_step) * p.scale;
  if (SOFTCAP) {
    return p.softcap * f_tanh(x / p.softcap);
  }
  return x;
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let row = flat(workgroup, workgroups, 0u, 1u);
  if (row >= p.rows) {
    return;
  }
  let start = x_offset(row);
  var seen = p.len;
  if (CAUSAL) {
    seen = row % p.queries + p.seen;
  }
  var most = LEAST;
  for (var i = invocation.local; i < seen; i += WG) {
    most = max(most, score(start, i));
  }
  most = workgroup_max(most, invocation);
  var sum = 0.0;
  for (var i = invocation.local; i < seen; i += WG) {
    sum += exp(score(start, i) - most);
  }
  reduce(array<f32, COUNT>(sum), invocation);
  let scale = 1.0 / total(0u);
  for (var word = invocation.local; word < p.len / DST_LANES; word += WG) {
    var lanes: array<dst_t, DST_LANES>;
    for (var lane = 0u; lane < DST_LANES; lane++) {
      let i = word * DST_LANES + lane;
      if (i < seen) {
        lanes[lane] = exp(score(start, i) - most) * scale;
      }
    }
    dst_put(row * (p.len / DST_LANES) + word, lanes);
  }
}
