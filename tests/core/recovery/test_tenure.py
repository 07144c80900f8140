from __future__ import annotations

from penstock.core.ids import Term
from penstock.core.recovery.tenure import EPOCHS_PER_TERM, Tenure


def test_the_epochs_of_a_term_lie_above_those_of_all_terms_before_it() -> None:
    assert Tenure().first_epoch == 1
    assert Tenure(term=Term(1)).first_epoch > EPOCHS_PER_TERM
    assert Tenure(term=Term(2)).first_epoch - Tenure(term=Term(1)).first_epoch == EPOCHS_PER_TERM
