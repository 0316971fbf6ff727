// One invocation per row: for short rows, and for many adjacent rows.

fn word_of(workgroup: vec3<u32>, workgroups: vec3<u32>, local: u32) -> u32 {
  return flat(workgroup, workgroups, local, WG);
}

fn reduced(o: u32, local: u32) -> Found {
  return sweep(o, 0u, 1u);
}

fn writes(local: u32) -> bool {
  return true;
}
