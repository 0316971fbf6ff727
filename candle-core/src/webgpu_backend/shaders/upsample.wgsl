// dst[b, c, oy, ox] from the elements of src in the table's entries for row oy and column ox.

fn entry(i: u32) -> vec4<u32> {
  return vec4<u32>(table_at(4u * i), table_at(4u * i + 1u), table_at(4u * i + 2u), table_at(4u * i + 3u));
}

fn element_at(i: u32) -> src_t {
  let ox = i % p.o_w;
  var rest = i / p.o_w;
  let oy = rest % p.o_h;
  rest /= p.o_h;
  let start = p.src_offset + rest / p.channels * p.src_batch + rest % p.channels * p.src_channel;
  return resampled(start, entry(oy), entry(p.o_h + ox));
}
