// A step of merging runs that are longer than a window of a row: an invocation compares the elements at the same index of two windows and
// swaps them into the run's order.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let i = flat(workgroup, workgroups, local, WG);
  if (i >= p.len) {
    return;
  }
  let a = keys[i];
  let b = high_keys[i];
  let a_id = ids[i];
  let b_id = high_ids[i];
  let after = key_less(b, a) || (!key_less(a, b) && b_id < a_id);
  if (after == ((p.first & p.run) == 0u)) {
    keys[i] = b;
    high_keys[i] = a;
    ids[i] = b_id;
    high_ids[i] = a_id;
  }
}
