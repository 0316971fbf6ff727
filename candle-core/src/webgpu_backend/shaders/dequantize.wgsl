// dst = the elements of rows of blocks as floats, times a power of two. An invocation dequantises eight elements, which store_eight(i, a,
// b) writes as group number i. source(e) is the index of dst's element e in the blocks, or NOTHING_HERE.

const NOTHING_HERE = 0xffffffffu;

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let first = flat(workgroup, workgroups, local, WG) * 8u;
  if (first >= p.len) {
    return;
  }
  let at = source(first);
  if (at == NOTHING_HERE) {
    return;
  }
  let values = rhs_elements(rhs_word(at));
  store_eight(first / 8u, values[0] * p.factor, values[1] * p.factor);
}
