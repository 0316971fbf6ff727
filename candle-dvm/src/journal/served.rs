//! Customers who had results, in the journal: they are known after a restart too.

use super::failed;
use crate::jobs::{Customer, JournalError};
use redb::{ReadTransaction, ReadableTable, ReadableTableMetadata, TableDefinition};
use redb::{Table, WriteTransaction};
use std::collections::BTreeMap;

/// For each customer, when they last had a result.
pub(super) const SERVED: TableDefinition<&[u8; 32], u64> = TableDefinition::new("served");
/// The number that [`crate::jobs::Admission`] remembers.
const MOST: usize = 10_000;

/// Notes when customers had their last results.
pub(super) fn add(
    write: &WriteTransaction,
    served: &BTreeMap<Customer, u64>,
) -> Result<(), JournalError> {
    let mut table = write.open_table(SERVED).map_err(failed)?;
    for (customer, now) in served {
        table.insert(&customer.0, now).map_err(failed)?;
    }
    Ok(())
}

/// All of them, those who were quiet longest first.
pub(super) fn all(read: &ReadTransaction) -> Result<Vec<(Customer, u64)>, JournalError> {
    sorted(&read.open_table(SERVED).map_err(failed)?)
}

fn sorted(
    table: &impl ReadableTable<&'static [u8; 32], u64>,
) -> Result<Vec<(Customer, u64)>, JournalError> {
    let mut all = Vec::new();
    for row in table.iter().map_err(failed)? {
        let (customer, at) = row.map_err(failed)?;
        all.push((Customer(*customer.value()), at.value()));
    }
    all.sort_by_key(|(_, at)| *at);
    Ok(all)
}

/// Deletes customers without a result since `before`, and the least recent ones beyond the maximum number. Returns the number deleted.
pub(super) fn forget(write: &WriteTransaction, before: u64) -> Result<usize, JournalError> {
    let mut table: Table<&'static [u8; 32], u64> = write.open_table(SERVED).map_err(failed)?;
    let all = sorted(&table)?;
    let excess = all.len().saturating_sub(MOST);
    let old = all.iter().enumerate();
    let old = old.filter(|(place, (_, at))| *place < excess || *at < before);
    let mut count = 0;
    for (_, (customer, _)) in old {
        table.remove(&customer.0).map_err(failed)?;
        count += 1;
    }
    Ok(count)
}

/// Number of customers.
pub(super) fn count(read: &ReadTransaction) -> Result<u64, JournalError> {
    let table = read.open_table(SERVED).map_err(failed)?;
    table.len().map_err(failed)
}
