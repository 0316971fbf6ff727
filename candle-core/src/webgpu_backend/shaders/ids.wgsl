// Indexes as data: `ids`, and p.size, the size of the dimension that they index.

// What an index that is the greatest number of its dtype names: nothing.
const NOTHING = 0xffffffffu;

// The index at `at` of `ids`, or NOTHING for one that is to be skipped, or is out of range and reported.
fn id_at(at: u32) -> u32 {
  let id = ids_at(at);
  if (skipped(id)) {
    return NOTHING;
  }
  let low = low_word(id);
  if (!fits(id) || low >= p.size) {
    // The first report stays. The op's number makes it valid, so it comes last.
    if (atomicLoad(&status[0]) == 0u) {
      atomicStore(&status[1], low);
      atomicStore(&status[2], p.size);
      atomicStore(&status[0], p.op);
    }
    return NOTHING;
  }
  return low;
}
