// dst[b, c, oy, ox] from the elements of src that the table names for row oy and for column ox. An invocation writes one word
// of dst.

fn entry(i: u32) -> vec3<u32> {
  return vec3<u32>(table_at(3u * i), table_at(3u * i + 1u), table_at(3u * i + 2u));
}

fn pixel(i: u32) -> src_t {
  let ox = i % p.o_w;
  var rest = i / p.o_w;
  let oy = rest % p.o_h;
  rest /= p.o_h;
  let start = p.src_offset + rest / p.channels * p.src_batch + rest % p.channels * p.src_channel;
  return resampled(start, entry(oy), entry(p.o_h + ox));
}

@compute @workgroup_size(WG)
fn main(
  @builtin(workgroup_id) workgroup: vec3<u32>,
  @builtin(num_workgroups) workgroups: vec3<u32>,
  @builtin(local_invocation_index) local: u32,
) {
  let word = flat(workgroup, workgroups, local, WG);
  if (word * DST_LANES >= p.len) {
    return;
  }
  var lanes: array<dst_t, DST_LANES>;
  for (var lane = 0u; lane < DST_LANES; lane++) {
    let i = word * DST_LANES + lane;
    if (i < p.len) {
      lanes[lane] = pixel(i);
    }
  }
  dst_put(word, lanes);
}
