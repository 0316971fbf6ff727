// The index of element `e` of the result in a table of which only some rows are bound: an id selects its row.
fn source(e: u32) -> u32 {
  let row = id_at(p.ids_offset + e / p.hidden * p.ids_step);
  if (row < p.rows_first || row - p.rows_first >= p.rows) {
    return NOTHING_HERE;
  }
  return p.first + (row - p.rows_first) * p.hidden + e % p.hidden;
}
