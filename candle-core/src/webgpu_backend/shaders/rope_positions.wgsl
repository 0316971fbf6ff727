// Each sequence of a batch continues at an index in the cache that only the device knows. An index that is too large is reported.

fn place_in_cache(batch: u32, seq: u32) -> u32 {
  let position = positions_at(p.positions_offset + batch * p.positions_step);
  if (position <= p.capacity - p.seq) {
    return position + seq;
  }
  // The first report stays. The op's number makes it valid, so it comes last.
  if (atomicLoad(&status[0]) == 0u) {
    atomicStore(&status[1], position);
    atomicStore(&status[2], p.capacity - p.seq + 1u);
    atomicStore(&status[0], p.op);
  }
  return p.capacity;
}
