// dst = the running sums within parts of p.chunk elements of a row, in the type of sums. An invocation computes a part.

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let part = flat(workgroup, workgroups, local, WG);
  if (part >= p.parts) {
    return;
  }
  let row = part / p.chunks * p.inner;
  let begin = part % p.chunks * p.chunk;
  let end = begin + min(p.chunk, p.inner - begin);
  var sum: src_t;
  for (var j = begin; j < end; j++) {
    let value = src_at(src_offset(row + j));
    if (j == begin) {
      // Keeps a first -0.
      sum = value;
    } else {
      sum = f_add(sum, value);
    }
    dst_put(row + j, array<dst_t, 1>(sum));
  }
}
