CREATE TABLE items (
    name  text PRIMARY KEY,
    stock bigint NOT NULL,
    fence bigint NOT NULL DEFAULT 0 -- the largest fencing token of a holder of this item's lock
);

CREATE TABLE sales (
    sale  text PRIMARY KEY, -- the client's number of the sale: a sale that is requested twice is made once
    item  text NOT NULL REFERENCES items,
    price bigint NOT NULL
);
