package nexmark

import "strconv"

// AppendJSON appends an event as one JSON object without spaces or newline: {"bid":{"auction":1000,..}}. Its strings need
// no escapes.
func AppendJSON(dst []byte, e *Event) []byte {
	switch e.Kind {
	case KindPerson:
		p := &e.Person
		dst = number(append(dst, `{"person":{`...), `"id":`, p.ID)
		dst = text(dst, `,"name":"`, p.Name)
		dst = text(dst, `,"emailAddress":"`, p.Email)
		dst = text(dst, `,"creditCard":"`, p.CreditCard)
		dst = text(dst, `,"city":"`, p.City)
		dst = text(dst, `,"state":"`, p.State)
		dst = number(dst, `,"dateTime":`, p.Time)
		dst = text(dst, `,"extra":"`, p.Extra)
	case KindAuction:
		a := &e.Auction
		dst = number(append(dst, `{"auction":{`...), `"id":`, a.ID)
		dst = text(dst, `,"itemName":"`, a.ItemName)
		dst = text(dst, `,"description":"`, a.Description)
		dst = number(dst, `,"initialBid":`, a.InitialBid)
		dst = number(dst, `,"reserve":`, a.Reserve)
		dst = number(dst, `,"dateTime":`, a.Time)
		dst = number(dst, `,"expires":`, a.Expires)
		dst = number(dst, `,"seller":`, a.Seller)
		dst = number(dst, `,"category":`, a.Category)
		dst = text(dst, `,"extra":"`, a.Extra)
	case KindBid:
		b := &e.Bid
		dst = number(append(dst, `{"bid":{`...), `"auction":`, b.Auction)
		dst = number(dst, `,"bidder":`, b.Bidder)
		dst = number(dst, `,"price":`, b.Price)
		dst = text(dst, `,"channel":"`, b.Channel)
		dst = text(dst, `,"url":"`, b.URL)
		dst = number(dst, `,"dateTime":`, b.Time)
		dst = text(dst, `,"extra":"`, b.Extra)
	}
	return append(dst, "}}"...)
}

func number(dst []byte, name string, v int64) []byte {
	return strconv.AppendInt(append(dst, name...), v, 10)
}

func text(dst []byte, name string, v []byte) []byte {
	return append(append(append(dst, name...), v...), '"')
}
