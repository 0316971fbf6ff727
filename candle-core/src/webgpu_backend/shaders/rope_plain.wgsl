// Without norms: an invocation writes UNIT elements, which are in one head.

fn normed(x: f32, head: u32, i: u32, root: f32) -> f32 { return x; }

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let first = flat(workgroup, workgroups, local, WG) * UNIT;
  if (first < p.len) {
    let row = first / p.dim;
    write(place_of(row), row, first % p.dim, 1.0);
  }
}
