// Each new position has a place in the cache that the device alone knows. One that is too large is reported.

fn place_in_cache(batch: u32, seq: u32) -> u32 {
  let position = positions_at(p.positions_offset + batch * p.positions_step + seq);
  // The first report stays. The op's number makes it valid, so it comes last.
  if (position >= p.capacity && atomicLoad(&status[0]) == 0u) {
    atomicStore(&status[1], position);
    atomicStore(&status[2], p.capacity);
    atomicStore(&status[0], p.op);
  }
  return position;
}
