// Queries and keys are RMS-normed, each head separately: a workgroup processes a head.

// Divided by the root, not multiplied by its inverse, as in norm.wgsl.
fn normed(x: f32, head: u32, i: u32, root: f32) -> f32 {
  if (head >= p.rotated) {
    return x;
  }
  let key = u32(head >= p.queries);
  return x / root * norms_at(p.norms_offset + key * p.norms_head + i * p.norms_dim);
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  invocation: Invocation,
) {
  let row = flat(workgroup, workgroups, 0u, 1u);
  if (row * p.dim >= p.len) {
    return;
  }
  let place = place_of(row);
  var sum = 0.0;
  for (var i = invocation.local; i < p.dim; i += WG) {
    let x = x_at(place.start + i * p.x_dim);
    sum += x * x;
  }
  reduce(array<f32, COUNT>(sum), invocation);
  let root = sqrt(total(0u) / f32(p.dim) + p.eps);
  for (var first = invocation.local * UNIT; first < p.dim; first += WG * UNIT) {
    write(place, row, first, root);
  }
}
