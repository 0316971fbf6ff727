// One step of merging runs of p.run elements: an invocation compares two elements p.step apart and swaps them into the run's order.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let pair = flat(workgroup, workgroups, local, WG);
  if (pair >= p.len) {
    return;
  }
  let low = (pair / p.step) * p.step * 2u + pair % p.step;
  let high = low + p.step;
  let a = keys[low];
  let b = keys[high];
  let a_id = ids[low];
  let b_id = ids[high];
  let after = key_less(b, a) || (!key_less(a, b) && b_id < a_id);
  // Runs are counted within a row; this may be a window of one.
  if (after == (((p.first + low % p.padded) & p.run) == 0u)) {
    keys[low] = b;
    keys[high] = a;
    ids[low] = b_id;
    ids[high] = a_id;
  }
}
