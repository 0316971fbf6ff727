// A workgroup reduces a row together: for long rows. The first invocation has the result.

var<workgroup> values: array<src_t, WG>;
var<workgroup> places: array<u32, WG>;

fn word_of(workgroup: vec3<u32>, workgroups: vec3<u32>, local: u32) -> u32 {
  return flat(workgroup, workgroups, 0u, 1u);
}

fn reduced(o: u32, local: u32) -> Found {
  var found = sweep(o, local, WG);
  values[local] = found.value;
  places[local] = found.place;
  for (var half = WG / 2u; half > 0u; half /= 2u) {
    workgroupBarrier();
    if (local < half) {
      found = combine(found, Found(values[local + half], places[local + half]));
      values[local] = found.value;
      places[local] = found.place;
    }
  }
  // A word's next lane uses the same memory.
  workgroupBarrier();
  return found;
}

fn writes(local: u32) -> bool {
  return local == 0u;
}
